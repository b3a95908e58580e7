"""Kubernetes' rules between pods, and between pods and nodes beyond free room."""
