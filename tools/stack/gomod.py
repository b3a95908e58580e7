"""Writes the module files that build etcd, Kubernetes and kwok from Go's module proxy.

Kubernetes is published as a module that cannot be required as it is: it points to its own libraries by relative paths
("staging"). Each library is also published under its own version, so a module file that replaces each path by the
released version builds the real binaries. The files are kept with the source, so a build resolves nothing.
"""

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.stack import versions
from tools.stack.errors import StackError
from tools.stack.paths import MODULES

_STAGING = re.compile(r"^\s*(?:replace\s+)?(\S+)\s+=>\s+\./staging/\S+\s*$")


@dataclass(frozen=True, slots=True)
class Module:
    """One module file: what it requires and which commands it builds."""

    name: str
    requires: str
    version: str
    packages: tuple[str, ...]
    staging: bool = False


ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", f"v{versions.ETCD}", ("go.etcd.io/etcd/server/v3",))
KUBERNETES = Module(
    "kubernetes",
    "k8s.io/kubernetes",
    f"v{versions.KUBERNETES}",
    tuple(
        f"k8s.io/kubernetes/cmd/{command}"
        for command in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    ),
    staging=True,
)
KWOK = Module("kwok", "sigs.k8s.io/kwok", f"v{versions.KWOK}", ("sigs.k8s.io/kwok/cmd/kwok",))
ALL = (ETCD, KUBERNETES, KWOK)


def staging_modules(go_mod: str) -> list[str]:
    """The libraries that a Kubernetes module file takes from its own tree, in the order it names them."""
    return [match[1] for line in go_mod.splitlines() if (match := _STAGING.match(line))]


def render(module: Module, staging: Iterable[str] = ()) -> str:
    """The module file before `go mod tidy` adds what is required indirectly."""
    lines = [f"module drystone.dev/stack/{module.name}", "", f"go {versions.GO}"]
    if module.staging:
        # The release is built with this setting; without it the library's own go line decides.
        lines += ["", f"godebug default=go{'.'.join(versions.GO.split('.')[:2])}"]
    lines += ["", "tool (", *(f"\t{package}" for package in sorted(module.packages)), ")"]
    lines += ["", f"require {module.requires} {module.version}"]
    released = versions.staging_version(versions.KUBERNETES)
    replaces = [f"\t{library} => {library} {released}" for library in staging]
    if replaces:
        lines += ["", "replace (", *replaces, ")"]
    return "\n".join(lines) + "\n"


def pin(go: Path, folder: Path = MODULES) -> list[Path]:
    """Writes and tidies every module file for the pinned versions; returns the files."""
    written: list[Path] = []
    for module in ALL:
        target = folder / module.name
        target.mkdir(parents=True, exist_ok=True)
        staging = _read_staging(go, module) if module.staging else []
        go_mod, go_sum = target / "go.mod", target / "go.sum"
        # Sums of versions that are no longer used would stay for ever otherwise.
        go_sum.unlink(missing_ok=True)
        go_mod.write_text(render(module, staging), encoding="utf-8")
        _run(go, "mod", "tidy", cwd=target)
        written += [go_mod, go_sum]
    return written


def _read_staging(go: Path, module: Module) -> list[str]:
    described = json.loads(_run(go, "mod", "download", "-json", f"{module.requires}@{module.version}", cwd=Path("/")))
    return staging_modules(Path(described["GoMod"]).read_text(encoding="utf-8"))


def _run(go: Path, *arguments: str, cwd: Path) -> str:
    done = subprocess.run([str(go), *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"`go {' '.join(arguments)}` failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout
