"""Tasks near each other: in one zone, rack, NVLink domain or node, as a job wishes or demands."""
