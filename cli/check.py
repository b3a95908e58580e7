"""`drystone check`: the laws on a live system, API server against ledger."""

from __future__ import annotations

from pathlib import Path

from cli.access import ledger, with_cluster
from cli.errors import CommandError
from cli.out import say, show
from libs.host.laws import Violation, violations
from libs.kube.port import Kube
from libs.store.port import LedgerMisconfigured, LedgerUnavailable


def check(kubeconfig: Path | None, redis: str, as_json: bool) -> int:
    async def body(kube: Kube, _namespace: str) -> list[Violation]:
        opened = ledger(redis)
        try:
            await opened.open()
            return await violations(kube, opened)
        except (LedgerUnavailable, LedgerMisconfigured) as error:
            raise CommandError(str(error)) from None
        finally:
            await opened.close()

    found = with_cluster(kubeconfig, body)
    if as_json:
        rows = [{"law": v.law, "about": v.about, "detail": v.detail} for v in found]
        show({"broken": rows})
    else:
        for v in found:
            say(f"{v.law}: {v.about}: {v.detail}")
        say(f"{len(found)} laws broken" if found else "all laws hold")
    return 1 if found else 0
