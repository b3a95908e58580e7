"""What is wrong with what the simulator was given."""

from __future__ import annotations


class SimulationError(Exception):
    """One sentence for the person who typed the command."""
