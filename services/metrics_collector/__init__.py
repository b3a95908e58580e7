"""GPU facts from Prometheus for every placement replica; finds memory that nobody owns."""
