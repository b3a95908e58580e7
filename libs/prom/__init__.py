"""Reading from Prometheus: instant queries and the metrics of NVIDIA's DCGM exporter."""
