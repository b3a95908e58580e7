"""Where things lie: the cache of built binaries, and the module files they are built from.

The cache is outside the source tree, so that cleaning the tree never costs a build of twelve minutes.
"""

import os
from pathlib import Path

MODULES = Path(__file__).parent / "modules"
"""One folder per thing that is built: its pinned module files."""


def cache() -> Path:
    """The folder of everything that was built or fetched; kept between runs."""
    chosen = os.environ.get("DRYSTONE_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path.home() / ".cache" / "drystone"


def write_private(path: Path, text: str) -> None:
    """Replaces a file in one step, readable by its owner only: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process is part of the name: two that write the same file must not share the half-written one.
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.touch(mode=0o600)
    half.write_text(text, encoding="utf-8")
    half.replace(path)
