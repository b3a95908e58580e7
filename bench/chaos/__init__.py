"""Chaos on real parts: work streams in, something breaks in each round, and afterwards every law must hold."""
