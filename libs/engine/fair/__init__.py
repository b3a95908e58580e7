"""Fairness between queues: where each stands, and the line over the tree."""

from libs.engine.fair.ask import Place, amounts, amounts_of, asked, everything, level_of, models_of, place, place_of
from libs.engine.fair.line import Entry, Line
from libs.engine.fair.little import LittleService
from libs.engine.fair.parts import NO_MODELS, Amounts, Models
from libs.engine.fair.shares import NOTHING, Shares, Standing, plus

__all__ = [
    "NOTHING", "NO_MODELS", "Amounts", "Entry", "Line", "LittleService", "Models", "Place", "Shares", "Standing",
    "amounts", "amounts_of", "asked", "everything", "level_of", "models_of", "place", "place_of", "plus",
]  # fmt: skip
