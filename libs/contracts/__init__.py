"""What travels between services: wire types, the topic table, the envelope."""
