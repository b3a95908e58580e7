"""Consolidation: which running tasks to move so that a waiting job fits. Plans only; see `plan`."""
