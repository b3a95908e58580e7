"""Gets the programs that are missing: Go builds, Kafka's jars, Debian packages.

What is there is never built again, two processes that build at once do it once, and an interrupted build leaves nothing
that looks finished. A missing client (go, mvn, apt-get, java) is one sentence.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import mkdtemp

from tools.stack import gomod, toolbox, versions
from tools.stack.errors import StackError
from tools.stack.paths import MODULES, cache
from tools.stack.toolbox import TOOLS, Source, Tool

Report = Callable[[str], None]
"""Takes one line of progress."""

_PROGRESS_EVERY = 20.0
_HELP = {
    "go": "Go {go} or newer is needed to build {wanted}, and there is no `go` on PATH: install it, or put the binaries "
    "on PATH or into the folder that KUBEBUILDER_ASSETS names.",
    "mvn": "Maven is needed to fetch Kafka, and there is no `mvn` on PATH: install it (Debian: "
    "`apt-get install maven`).",
    "java": "A Java runtime (17 or newer) is needed for Kafka, and there is no `java` on PATH: install one (Debian: "
    "`apt-get install openjdk-17-jre-headless`).",
    "apt-get": "{wanted} is not there, and there is no `apt-get` on PATH to install it with: install it by hand.",
}


def ensure(names: Iterable[str], report: Report) -> dict[str, Path]:
    """Finds every program, gets those that are missing, and returns where each one lies."""
    wanted = [name for name in TOOLS if name in set(names)]
    found = {name: toolbox.find(name) for name in wanted}
    missing = [TOOLS[name] for name in wanted if found[name] is None]
    if missing:
        with _lock(report):
            _get(missing, report)
    return {name: found[name] or toolbox.need(name) for name in wanted}


def _get(missing: list[Tool], report: Report) -> None:
    # Anything that cannot work is said before minutes are spent on the rest.
    for tool in missing:
        _client(tool)
    packages = [tool.package for tool in missing if tool.source is Source.DEBIAN]
    if packages:
        _install(packages, report)
    for tool in missing:
        # Another process may have built it while this one waited for the lock.
        if tool.source is Source.DEBIAN or toolbox.find(tool.name):
            continue
        began = time.monotonic()
        if tool.source is Source.GO:
            _build_go(tool, report)
        elif tool.source is Source.MAVEN:
            _fetch_kafka(tool, report)
        report(f"{tool.name}: there after {time.monotonic() - began:.0f} s")


def _client(tool: Tool) -> str:
    command = "java" if tool.source is Source.JAVA else tool.source.value
    found = shutil.which(command)
    if found is None:
        raise StackError(_HELP[command].format(wanted=tool.name, go=versions.GO))
    return found


def _build_go(tool: Tool, report: Report) -> None:
    if tool.module is None:
        raise StackError(f"{tool.name} has no module file.")
    target = toolbox.cached(tool)
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{tool.name}.half")
    report(f"{tool.name} {tool.version}: building (minutes the first time)")
    # Without symbols: a third smaller, and nobody debugs these.
    flags = ["-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {_stamp(tool)}".strip()]
    command = [_client(tool), "build", "-v", *flags, "-o", str(half), tool.package]
    _watch(command, MODULES / tool.module.name, tool.name, report)
    half.replace(target)


def _stamp(tool: Tool) -> str:
    """Linker flags that put in the version, which Kubernetes' own build scripts do: clients decide by it."""
    if tool.module is not gomod.KUBERNETES:
        return ""
    major, minor, _ = tool.version.split(".")
    values = {"gitVersion": f"v{tool.version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())


def _fetch_kafka(tool: Tool, report: Report) -> None:
    target = toolbox.cached(tool)
    target.parent.mkdir(parents=True, exist_ok=True)
    half = Path(mkdtemp(prefix=".kafka.", dir=target.parent))
    report(f"kafka {tool.version}: fetching")
    command = [_client(tool), "--batch-mode", "--file", str(MODULES / "kafka" / "pom.xml")]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={half}"]
    try:
        _watch(command, half, "kafka", report)
        half.chmod(0o755)
        half.replace(target)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _install(packages: list[str], report: Report) -> None:
    joined = " ".join(packages)
    if os.geteuid() != 0:
        raise StackError(f"Missing: {joined}. Run `sudo apt-get install {joined}` once.")
    report(f"installing {joined}")
    quiet = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q"]
    _watch([*quiet, "update"], Path("/"), "apt-get update", report)
    _watch([*quiet, "install", "--no-install-recommends", *packages], Path("/"), "apt-get install", report)


def _watch(command: list[str], folder: Path, name: str, report: Report) -> None:
    """Runs a client, says now and then how far it is, and keeps all it says in a log of the cache."""
    log = cache() / "log" / f"{name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    told, lines, last = time.monotonic(), 0, ""
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running,
    ):
        for line in running.stdout or ():
            kept.write(line)
            lines, last = lines + 1, line.strip() or last
            if time.monotonic() - told > _PROGRESS_EVERY:
                told = time.monotonic()
                report(f"{name}: {lines} steps, now {last[:80]}")
    if running.returncode:
        raise StackError(f"{name}: `{Path(command[0]).name}` failed: {last[:300]} (all of it: {log})")


@contextlib.contextmanager
def _lock(report: Report) -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another build to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
