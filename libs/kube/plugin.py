"""A kubeconfig's `exec` user: a program that is asked for a token, as kubectl asks it (EKS, GKE, AKS, OIDC).

The token is asked for when it is first needed, again a minute before it ends, and after the API server called it
unknown. kubernetes-asyncio speaks with the program; it is loaded only here, because it is large.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from libs.kube.errors import BadConfiguration

#: How long the program may take; it may have to ask somebody.
ANSWER_S: Final = 30.0
#: So long before it ends a token is asked for anew, and not oftener than this in any case.
_EARLY_S: Final = 60.0
_PAUSE_S: Final = 5.0


class PluginFault(Exception):
    """The program gave no token: one sentence."""


class Plugin:
    """`said` is the user's `exec` in the kubeconfig `path`. Raises BadConfiguration where it cannot be used at all."""

    def __init__(self, path: Path, said: dict[str, Any]) -> None:
        command = str(said.get("command") or "")
        if not command or not said.get("apiVersion"):
            raise BadConfiguration(f"kubeconfig {path}: `exec` needs `command` and `apiVersion`")
        if "/" in command and not command.startswith("/"):
            command = str(path.parent / command)  # as kubectl has it
        self._said = {**said, "command": command}
        self._path = path
        self._turn = asyncio.Lock()
        self._until = 0.0
        self._asked_at = float("-inf")
        self._fault = ""
        self.token = ""

    @property
    def due(self) -> bool:
        return time.time() >= self._until

    def refused(self) -> None:
        """The API server does not know the token (any more)."""
        if time.monotonic() - self._asked_at >= _PAUSE_S:
            self._until = 0.0

    async def renew(self) -> None:
        """Ask for a token if one is due; several callers ask once. Raises PluginFault, for a while without asking."""
        async with self._turn:
            if not self.due:
                return
            if self._fault and time.monotonic() - self._asked_at < _PAUSE_S:
                raise PluginFault(self._fault)
            try:
                self.token, self._until = await self._ask()
                self._fault = ""
            except PluginFault as fault:
                self._fault = str(fault)
                raise
            finally:
                self._asked_at = time.monotonic()

    async def _ask(self) -> tuple[str, float]:
        """The token and until when it is good, seconds since the epoch."""
        from kubernetes_asyncio.config.exec_provider import ExecProvider
        from kubernetes_asyncio.config.kube_config import ConfigNode

        command = self._said["command"]
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await ExecProvider(ConfigNode("exec", self._said)).run()
        except TimeoutError:
            raise self._failed(f"no answer within {ANSWER_S:g} s") from None
        except Exception as error:
            raise self._failed(" ".join(str(error).split())[:300]) from error
        token = answer.get("token") if isinstance(answer, dict) else None
        if not token:
            certificate = isinstance(answer, dict) and answer.get("clientCertificateData")
            raise self._failed("a client certificate is not supported, a token is" if certificate else "no token")
        ends = answer.get("expirationTimestamp")
        try:
            until = datetime.fromisoformat(ends).timestamp() - _EARLY_S if ends else float("inf")
        except (TypeError, ValueError):
            raise self._failed(f"{command} gives {str(ends)[:40]!r} as the end of its token") from None
        # One that ends within the minute is used all the same, for as long as a pause between two questions.
        return str(token), max(until, time.time() + _PAUSE_S)

    def _failed(self, why: str) -> PluginFault:
        return PluginFault(f"kubeconfig {self._path}: {self._said['command']}: {why}")
