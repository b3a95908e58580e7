"""The small sets that values are drawn from: small, so that rules meet pods and nodes often."""

from __future__ import annotations

from typing import Any, Final

Object = dict[str, Any]

ZONES: Final = ("z1", "z2", "z3")
RACKS: Final = ("r1", "r2", "r3", "r4")
APPS: Final = ("a", "b", "c")
#: Nothing that runs has it: whoever asks for it near is the first of its group.
FIRST: Final = "d"
TIERS: Final = ("front", "back")
TEAMS: Final = ("red", "blue")
KEYS: Final = ("topology.kubernetes.io/zone", "rack", "kubernetes.io/hostname")
FPGA: Final = "example.com/fpga"
RUNTIME_CLASS: Final = "heavy"
DRIVER: Final = "disks.example.com"
FIRST_USE_CLASS: Final = "first-use"
IMMEDIATE_CLASS: Final = "at-once"
