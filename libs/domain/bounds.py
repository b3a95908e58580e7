"""How large an amount may be. Everything real lies far below; what lies above is cut where it is read.

Within these, sums are exact wherever they are made: over a million pods in a double (the ledger's Lua), over a node's
pods and over all nodes in 64 bits (the engine's vectors), products with 1,000 included. A pod that asks for more is
refused, since no node has it; a node that offers more is believed to have this much; a limit above is as good as none.
"""

from __future__ import annotations

from typing import Final

#: CPU (milli) or memory (MiB) of one pod: a million cores, a pebibyte. Also of one GPU, MiB.
MOST_ASKED: Final = 2**30
#: The same of one node, and its slots for pods.
MOST_OFFERED: Final = 2**36
#: Any other resource of one pod or node, in its base unit: a pebibyte where that is bytes.
MOST_EXTRA: Final = 2**50
#: GPUs of one node, so of one pod.
MOST_DEVICES: Final = 1024
#: An amount that a queue deserves or may use.
MOST_QUOTA: Final = 2**46
#: Tasks of one job, where a setting does not say otherwise.
MOST_TASKS: Final = 10_000
#: Seconds of any span, about thirty years.
MOST_SECONDS: Final = 10**9
