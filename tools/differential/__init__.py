"""Feasible nodes as the real kube-scheduler sees them against those that the engine sees, on random clusters and pods.

`python -m tools.differential --cases 1000 --json`
"""
