"""Kubernetes: raw reads and writes, list-and-watch, leases, and reading pods and nodes into domain values."""
