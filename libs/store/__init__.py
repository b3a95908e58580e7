"""The ledger: shared intent between decision and observation. One port, Redis Functions behind it."""
