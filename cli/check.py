"""`drystone check`: the laws on a live system, API server against ledger."""

from __future__ import annotations

from pathlib import Path

from cli.access import ledger, with_cluster
from cli.errors import CommandError
from cli.out import say, show
from libs.host.laws import Violation, violations
from libs.host.seen import exclusive
from libs.kube.port import Kube
from libs.store.port import LedgerMisconfigured, LedgerUnavailable

_MEANS = {
    "on": ": GPUs are given out by Drystone alone",
    "in part": ": its policies are bound to some namespaces or objects only",
    "off": ": other schedulers may give out GPUs too (docs/operations.md)",
    "unknown": ": not allowed to list validatingadmissionpolicybindings",
}


def check(kubeconfig: Path | None, redis: str, as_json: bool) -> int:
    def waiting(count: int, seconds: float) -> None:
        if not as_json:
            say(f"{count} may still be put right: looking for up to {seconds:.0f} s more")

    async def body(kube: Kube, _namespace: str) -> tuple[list[Violation], str]:
        opened = ledger(redis)
        try:
            await opened.open()
            return await violations(kube, opened, waiting=waiting), await exclusive(kube)
        except (LedgerUnavailable, LedgerMisconfigured) as error:
            raise CommandError(str(error)) from None
        finally:
            await opened.close()

    found, mode = with_cluster(kubeconfig, body)
    if as_json:
        rows = [{"law": v.law, "about": v.about, "detail": v.detail} for v in found]
        show({"broken": rows, "exclusive": mode})
    else:
        say(f"exclusive mode: {mode}{_MEANS[mode]}")
        for v in found:
            say(f"{v.law}: {v.about}: {v.detail}")
        say(f"{len(found)} laws broken" if found else "all laws hold")
    return 1 if found else 0
