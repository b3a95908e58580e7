"""Prose of the documents, wrapped at the width of the code.

`python -m tools.prose [FILE ...]` wraps the paragraphs and list items that have a line too wide or far too narrow, in
the named files or in all documents; code, tables and headings stay as they are. Nothing but white space changes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

WIDTH: Final = 120
#: A line that the next word would have left narrower than this is mended too.
_NARROW: Final = 96
#: Code and links up to this long are not cut at their blanks.
_WHOLE: Final = 80
_ITEM: Final = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_MARKS: Final = re.compile(r"^(?:[-*+>|#]|\d+[.)])$")
_UNCUT: Final = re.compile(r"`[^`]+`|\[[^\]]+\]\([^)]+\)")
_FIXED: Final = ("#", "|", "<", ">")
_BLANK: Final = "\0"


def wrapped(text: str) -> str:
    """The document with its prose wrapped."""
    out: list[str] = []
    block: list[str] = []
    code = False
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        stays = fence or code or not line.strip() or line.startswith(_FIXED) or (line.startswith("    ") and not block)
        if stays or _ITEM.match(line):
            out += _paragraph(block)
            block = [] if stays else [line]
            out += [line] if stays else []
            code ^= fence
        else:
            block.append(line)
    out += _paragraph(block)
    return "\n".join(out) + "\n"


def _paragraph(block: Sequence[str]) -> Iterable[str]:
    if not block or not _uneven(block):
        return block
    item = _ITEM.match(block[0])
    first = re.sub(r"\s+$", " ", item[0]) if item else block[0][: len(block[0]) - len(block[0].lstrip())]
    body = [block[0][item.end() :] if item else block[0], *block[1:]]
    return _lines(" ".join(line.strip() for line in body), first, " " * len(first))


def _uneven(block: Sequence[str]) -> bool:
    wide = any(len(line) > WIDTH for line in block)
    return wide or any(len(a.rstrip()) + 1 + len(b.split()[0]) <= _NARROW for a, b in pairwise(block))


def _lines(text: str, first: str, rest: str) -> list[str]:
    def whole(found: re.Match[str]) -> str:
        return found[0].replace(" ", _BLANK) if len(found[0]) <= _WHOLE else found[0]

    lines: list[list[str]] = [[]]
    room = WIDTH - len(first)
    for word in _UNCUT.sub(whole, text).split():
        line = lines[-1]
        if line and sum(map(len, line)) + len(line) + len(word) > room:
            # A mark at the beginning of a line would be read as a list: the word before it comes along.
            lines.append([line.pop()] if _MARKS.match(word) and len(line) > 1 else [])
            room = WIDTH - len(rest)
        lines[-1].append(word)
    return [(rest if n else first) + " ".join(line).replace(_BLANK, " ") for n, line in enumerate(lines)]


def documents(root: Path) -> list[Path]:
    said = subprocess.run(["git", "ls-files", "*.md"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [root / name for name in said.split("\n") if name]


def main(arguments: Sequence[str]) -> int:
    for path in map(Path, arguments) if arguments else documents(Path.cwd()):
        before = path.read_text(encoding="utf-8")
        after = wrapped(before)
        if before.split() != after.split():
            raise AssertionError(f"{path}: more than white space would change")
        if before != after:
            path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
