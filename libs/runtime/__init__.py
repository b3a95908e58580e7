"""Structured concurrency for services: supervised tasks, phases, back-off, merging queues, clocks."""
