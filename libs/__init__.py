"""Code shared by the services; imports point downwards only (see the layer contracts in pyproject.toml)."""
