"""Events between services: one port, Kafka behind it in production, an in-process log in the embedded mode."""
