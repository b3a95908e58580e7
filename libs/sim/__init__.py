"""The engine in virtual time: lists of nodes and tasks in, tables of what would have happened out.

The simulator feeds `libs.engine` as the services do and never places anything itself, so what it shows is what the
services would decide. It reads files, and has no network, clock or Kubernetes.
"""
