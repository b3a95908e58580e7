"""Deciding, and nothing else: no clock, no I/O, no randomness but a seeded generator. Events in, decisions out."""
