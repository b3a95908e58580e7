"""A program that gives tokens: asked when one is due, once for many callers; when it fails, one sentence says why."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from libs.kube import plugin as module
from libs.kube.plugin import Plugin, PluginFault

VERSION = "client.authentication.k8s.io/v1"


class Program:
    """Answers with what stands in `answer`, and writes down that it was asked."""

    def __init__(self, directory: Path, **status: Any) -> None:
        self.directory = directory
        self.answer = directory / "answer.json"
        self.asked = directory / "asked"
        self.says(**status)
        code = (
            "import pathlib, sys; here = pathlib.Path(sys.argv[1]); (here / 'asked').open('a').write('x');"
            "text = (here / 'answer.json').read_text(); print(text);"
            "text == 'fail' and sys.exit('no luck')"
        )
        self.said = {
            "apiVersion": VERSION,
            "command": sys.executable,
            "args": ["-c", code, str(directory)],
            "env": [{"name": "REGION", "value": "here"}],
        }
        self.plugin = Plugin(directory / "config", self.said)

    def says(self, **status: Any) -> None:
        self.answer.write_text(json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status}))

    @property
    def times(self) -> int:
        return len(self.asked.read_text()) if self.asked.exists() else 0


def ends_in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


async def test_many_callers_ask_once_and_a_token_without_an_end_is_kept(tmp_path: Path) -> None:
    program = Program(tmp_path, token="one")
    plugin = program.plugin
    assert plugin.due
    await asyncio.gather(*(plugin.renew() for _ in range(5)))
    assert (plugin.token, plugin.due, program.times) == ("one", False, 1)


async def test_a_token_is_asked_for_again_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    program = Program(tmp_path, token="one", expirationTimestamp=ends_in(3600))
    plugin = program.plugin
    await plugin.renew()
    assert not plugin.due
    plugin.refused()
    assert plugin.due, "unknown to the API server"
    program.says(token="two", expirationTimestamp=ends_in(30))
    await plugin.renew()
    assert (plugin.token, plugin.due) == ("two", True), "it ends within the minute"


async def test_a_server_that_refuses_every_token_does_not_make_the_program_run_all_the_time(tmp_path: Path) -> None:
    program = Program(tmp_path, token="one")
    await program.plugin.renew()
    program.plugin.refused()
    assert not program.plugin.due


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("fail", "no luck"),
        ("not json", "failed to decode"),
        ('{"apiVersion": "v0", "kind": "ExecCredential", "status": {}}', "does not match"),
        (json.dumps({"apiVersion": VERSION, "kind": "E", "status": {}}), "no token"),
        (json.dumps({"apiVersion": VERSION, "kind": "E", "status": None}), "no token"),
        (
            json.dumps({"apiVersion": VERSION, "kind": "E", "status": {"clientCertificateData": "x"}}),
            "a client certificate is not supported",
        ),
        (
            json.dumps({"apiVersion": VERSION, "kind": "E", "status": {"token": "t", "expirationTimestamp": "soon"}}),
            "'soon' as the end of its token",
        ),
    ],
)
async def test_what_goes_wrong_is_one_sentence_and_not_tried_again_at_once(
    tmp_path: Path, answer: str, words: str
) -> None:
    program = Program(tmp_path)
    program.answer.write_text(answer)
    for _ in range(2):
        with pytest.raises(PluginFault, match="kubeconfig") as fault:
            await program.plugin.renew()
        assert words in str(fault.value)
        assert "\n" not in str(fault.value)
    assert program.times == 1


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path / "config", {"apiVersion": VERSION, "command": "./not-here"})
    with pytest.raises(PluginFault, match="not-here"):
        await plugin.renew()
