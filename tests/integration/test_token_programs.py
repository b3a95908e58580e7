"""A kubeconfig whose user is a program, on the real API server: calls, watches and the command line go by its tokens,
and one that the server knows no more is replaced."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from libs.kube import plugin, writes
from libs.kube.client import KubeClient
from tools.stack import StackInfo

pytestmark = pytest.mark.real

_VERSION = "client.authentication.k8s.io/v1"


def says(file: Path, token: str) -> None:
    file.write_text(json.dumps({"apiVersion": _VERSION, "kind": "ExecCredential", "status": {"token": token}}))


async def test_a_program_of_a_kubeconfig_lets_us_in(
    info: StackInfo, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "_PAUSE_S", 0.0)
    config = yaml.safe_load(info.kubeconfig.read_text())
    (user,) = config["users"]
    token = user["user"]["token"]
    answer = tmp_path / "answer.json"
    user["user"] = {"exec": {"apiVersion": _VERSION, "command": "cat", "args": [str(answer)]}}
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(yaml.safe_dump(config))

    says(answer, token)
    command = [str(Path(sys.executable).with_name("drystone")), "status", "-n", namespace, "--json"]
    done = await asyncio.to_thread(
        subprocess.run, [*command, "--kubeconfig", str(kubeconfig)], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []

    says(answer, "of-yesterday")
    kube = KubeClient.from_kubeconfig(kubeconfig)
    try:
        assert (await kube.call("GET", writes.NODES)).status == 401
        says(answer, token)
        assert (await kube.call("GET", writes.NODES)).ok
        listed = await writes.list_all(kube, writes.NAMESPACES)
        async with asyncio.timeout(10):
            async for _, raw in kube.watch(writes.NAMESPACES, params={"resourceVersion": "0"}):
                assert raw
                break
        assert listed.items
    finally:
        await kube.close()
