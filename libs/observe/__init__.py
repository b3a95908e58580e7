"""What an operator sees of a service: logs, metrics, trace context, health."""
