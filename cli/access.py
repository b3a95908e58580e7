"""How the command line reaches the API server: as the caller, with the caller's own kubeconfig."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import yaml

from cli.errors import CommandError
from libs.kube.client import KubeClient
from libs.kube.errors import BadConfiguration, ReadFailed
from libs.kube.outcomes import why
from libs.kube.port import Answer, Kube

T = TypeVar("T")
_NAMESPACE: Final = "default"


def kubeconfig_path(given: Path | None) -> Path:
    """As given, else the first file of $KUBECONFIG, else the usual place."""
    if given is not None:
        return given
    named = [part for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return Path(named[0]) if named else Path.home() / ".kube" / "config"


def own_namespace(kubeconfig: Path) -> str:
    """The namespace of the kubeconfig's current context, `default` where it names none."""
    try:
        config = yaml.safe_load(kubeconfig.read_text())
        contexts = {entry["name"]: entry["context"] for entry in config["contexts"]}
        return str(contexts[config["current-context"]].get("namespace") or _NAMESPACE)
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return _NAMESPACE


def with_cluster(given: Path | None, work: Callable[[Kube, str], Awaitable[T]]) -> T:
    """Run `work(kube, own namespace)`; what the API server refuses becomes one sentence."""
    path = kubeconfig_path(given)

    async def body() -> T:
        try:
            kube = KubeClient.from_kubeconfig(path)
        except BadConfiguration as error:
            raise CommandError(str(error)) from None
        try:
            return await work(kube, own_namespace(path))
        except ReadFailed as error:
            raise CommandError(refused(f"{error.path} cannot be read", error.answer)) from None
        finally:
            await kube.close()

    return asyncio.run(body())


def refused(what: str, answer: Answer) -> str:
    """A sentence about an answer that was no success."""
    if answer.status == 0:
        return f"{what}: the API server does not answer ({answer.body[:200].decode(errors='replace')})"
    return f"{what}: {why(answer)}"
