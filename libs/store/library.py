"""The ledger's function library: several Lua sources, one Redis library.

Its name carries a version and a digest of the text, and so does every function in it. So different texts never share a
name: releases N and N-1 run side by side, nothing is ever replaced (a lower one cannot displace a higher one), and what
runs is always exactly what this process ships. Libraries two versions back are removed.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path
from typing import Final

VERSION: Final = 2
#: Layout of the keys. Data of a newer layout is refused; data of an older one is rebuilt.
LAYOUT: Final = 1

_NAME = re.compile(r"^drystone_(\d+)_[0-9a-f]{8}$")


@functools.cache
def library() -> tuple[str, str]:
    """(name, code)"""
    folder = Path(__file__).parent / "lua"
    body = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.lua")))
    name = f"drystone_{VERSION}_{hashlib.sha256(body.encode()).hexdigest()[:8]}"
    return name, f"#!lua name={name}\n" + body.replace("@LIBRARY@", name)


def outdated(name: str) -> bool:
    found = _NAME.match(name)
    return found is not None and int(found.group(1)) < VERSION - 1
