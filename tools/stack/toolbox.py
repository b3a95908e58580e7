"""Finds the programs that the parts run, and says how each one is got.

A program that is already on the machine in the pinned minor version is used as it is: first from the folder that
KUBEBUILDER_ASSETS names, then from PATH, then from the cache of what was built here.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tools.stack import gomod, versions
from tools.stack.errors import StackError
from tools.stack.paths import cache


class Source(Enum):
    """The client that a program is got with when it is not there."""

    GO = "go"
    MAVEN = "mvn"
    DEBIAN = "apt-get"
    JAVA = "a Java runtime"


@dataclass(frozen=True, slots=True)
class Tool:
    """One program, or for Kafka the folder of its jars."""

    name: str
    source: Source
    version: str = ""
    """The pinned version; empty when any will do."""
    package: str = ""
    """What its client calls it."""
    module: gomod.Module | None = None
    version_arguments: tuple[str, ...] = ("--version",)


_KUBERNETES = {
    name: Tool(
        name,
        Source.GO,
        versions.KUBERNETES,
        f"k8s.io/kubernetes/cmd/{name}",
        gomod.KUBERNETES,
        ("version", "--client") if name == "kubectl" else ("--version",),
    )
    for name in ("kube-apiserver", "kubectl", "kube-scheduler", "kube-controller-manager")
}
# In the order in which they are worth having: what most tests need first.
TOOLS: dict[str, Tool] = {
    "etcd": Tool("etcd", Source.GO, versions.ETCD, gomod.ETCD.packages[0], gomod.ETCD),
    **_KUBERNETES,
    "kwok": Tool("kwok", Source.GO, versions.KWOK, gomod.KWOK.packages[0], gomod.KWOK),
    "java": Tool("java", Source.JAVA),
    "kafka": Tool("kafka", Source.MAVEN, versions.KAFKA),
    "redis-server": Tool("redis-server", Source.DEBIAN, package="redis-server"),
    "openssl": Tool("openssl", Source.DEBIAN, package="openssl"),
    "prometheus": Tool("prometheus", Source.DEBIAN, package="prometheus"),
    "chromium": Tool("chromium", Source.DEBIAN, package="chromium"),
    "chromedriver": Tool("chromedriver", Source.DEBIAN, package="chromium-driver"),
}


def cached(tool: Tool) -> Path:
    """Where a built or fetched program lies in the cache."""
    if tool.source is Source.MAVEN:
        return cache() / f"{tool.name}-{tool.version}"
    module = tool.module.name if tool.module else tool.name
    return cache() / f"{module}-{tool.version}" / tool.name


def find(name: str) -> Path | None:
    """The program, if it is there."""
    tool = TOOLS[name]
    for folder in (os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", "")):
        # Kafka is a folder of jars, which no PATH holds.
        found = shutil.which(name, path=folder) if folder and tool.source is not Source.MAVEN else None
        if found and _fits(tool, Path(found)):
            return Path(found).absolute()
    if tool.version and cached(tool).exists():
        return cached(tool)
    return None


def need(name: str) -> Path:
    """The program; a StackError that says how to get it if it is not there."""
    found = find(name)
    if found is None:
        raise StackError(f"{name} is not there: `python -m tools.stack build` gets it.")
    return found


def go() -> Path:
    """The Go command; only builds and pins need it."""
    found = shutil.which("go")
    if found is None:
        raise StackError(f"Go {versions.GO} or newer is needed, and there is no `go` on PATH.")
    return Path(found)


def same_minor(said: str, version: str) -> bool:
    """Whether what a program says of its version names the pinned one, but for the patch."""
    found = re.search(r"\d+\.\d+\.\d+", said)
    return found is not None and found[0].split(".")[:2] == version.split(".")[:2]


def _fits(tool: Tool, path: Path) -> bool:
    if not tool.version:
        return True
    try:
        said = subprocess.run(
            [str(path), *tool.version_arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return same_minor(said.stdout, tool.version)
