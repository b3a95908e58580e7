"""Which GPU computes what how fast, and what that is worth where some are scarce."""
