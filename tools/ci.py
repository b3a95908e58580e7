"""The checks of `make test`, one after another, with the time of each: cheap ones first, real parts last.

Every stage runs even if an earlier one failed, so that one run tells everything; the exit status is 1 if any failed.
`python -m tools.ci STAGE ...` runs only those stages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    what: str
    commands: Callable[[], Sequence[Sequence[str]]]


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", *arguments]


STAGES = (
    Stage("lint", "ruff", lambda: [[str(BIN / "ruff"), "check", "."], [str(BIN / "ruff"), "format", "--check", "."]]),
    Stage("types", "mypy --strict", lambda: [[str(BIN / "mypy")]]),
    Stage("layers", "import-linter", lambda: [[str(BIN / "lint-imports")]]),
    Stage("unit", "tests without servers", lambda: [_pytest("-m", "not real", "tests")]),
    Stage("build", "control plane, Kafka, Redis, Prometheus", lambda: [[sys.executable, "-m", "tools.stack", "build"]]),
    Stage("real", "tests on the real parts", lambda: [_pytest("-m", "real", "--timeout=300", "tests")]),
)


def run(stage: Stage) -> bool:
    return all(
        subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, check=False).returncode == 0
        for command in stage.commands()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.ci", description=__doc__)
    parser.add_argument("stages", nargs="*", choices=[[], *[stage.name for stage in STAGES]], help="default: all")
    wanted = parser.parse_args(arguments).stages or [stage.name for stage in STAGES]
    results: list[tuple[Stage, bool, float]] = []
    for stage in STAGES:
        if stage.name not in wanted:
            continue
        sys.stdout.write(f"\n== {stage.name}: {stage.what}\n")
        sys.stdout.flush()
        begun = time.monotonic()
        passed = run(stage)
        results.append((stage, passed, time.monotonic() - begun))
    sys.stdout.write("\n")
    for stage, passed, seconds in results:
        sys.stdout.write(f"{'ok    ' if passed else 'FAILED'} {stage.name:<8} {seconds:7.1f} s  {stage.what}\n")
    return 0 if all(passed for _, passed, _ in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
