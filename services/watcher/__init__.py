"""The watcher: what the cluster is, as facts; what others submit, as objects."""
