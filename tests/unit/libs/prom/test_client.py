"""Prometheus behind a proxy that wants a token and speaks TLS; faults are values."""

import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from libs.prom.client import PromClient, PromFault
from services.metrics_collector.settings import CollectorSettings
from tools.stack.tls import Certificates

EMPTY = {"status": "success", "data": {"resultType": "vector", "result": []}}


@asynccontextmanager
async def proxy(token: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Lets in who shows the token."""

    async def query(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401)
        return web.json_response(EMPTY)

    app = web.Application()
    app.router.add_post("/api/v1/query", query)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(settings: CollectorSettings) -> str:
    """Why it does not answer, empty if it does."""
    client = PromClient(
        settings.prometheus_url, timeout_s=3, token=settings.prometheus_bearer, tls=settings.prometheus_tls()
    )
    try:
        answer = await client.instant("up")
        return answer.why if isinstance(answer, PromFault) else ""
    finally:
        await client.close()


async def test_a_mounted_token_that_changed_is_the_one_that_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    async with proxy("second") as url:
        settings = CollectorSettings(prometheus_url=url, prometheus_token_file=file)
        client = PromClient(url, token=settings.prometheus_bearer)
        try:
            refused = await client.instant("up")
            assert isinstance(refused, PromFault)
            assert "401" in refused.why
            file.write_text("second\n")
            assert await client.instant("up") == []
            file.unlink()
            gone = await client.instant("up")
            assert isinstance(gone, PromFault)
            assert gone.passing
            assert "the token for Prometheus cannot be read" in gone.why
        finally:
            await client.close()


async def test_a_certificate_is_trusted_if_its_signer_was_named(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl")
    made = Certificates(tmp_path / "tls")
    made.make(Path(openssl))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.both)
    async with proxy("t", context) as url:
        known = CollectorSettings(prometheus_url=url, prometheus_token="t", prometheus_ca_file=made.authority)
        assert await ask(known) == ""
        stranger = CollectorSettings(prometheus_url=url, prometheus_token="t")
        assert "CERTIFICATE_VERIFY_FAILED" in await ask(stranger)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"prometheus_token": "a", "prometheus_token_file": __file__}, "set one of them"),
        ({"prometheus_token_file": "/not/there"}, "DRYSTONE_PROMETHEUS_TOKEN_FILE names no readable file"),
        ({"prometheus_ca_file": "/not/there"}, "DRYSTONE_PROMETHEUS_CA_FILE names no readable file"),
    ],
)
def test_wrong_settings_are_refused(said: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CollectorSettings(**said)  # type: ignore[arg-type]
