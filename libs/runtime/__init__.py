"""How services run: owned tasks, backoff, merged writes, a clock that tests can replace, phased shutdown."""
