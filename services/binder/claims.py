"""Volume claims that wait for first use: their node is named, and the bind waits until they are bound.

A provisioner makes a volume for a claim once the annotation `volume.kubernetes.io/selected-node` says where. Until then
no pod that uses the claim is bound, and none is created with a node: kubelet would wait for the volume, and nobody
would make it. A claim whose node is another one by now is for a new decision.
"""

from __future__ import annotations

import enum

import msgspec

from libs.kube import writes
from libs.kube.port import Kube
from libs.kube.volumes import SELECTED_NODE, ClaimObject, claim_decoder, is_bound


class ClaimState(enum.Enum):
    READY = "is bound"
    WAITING = "is being provisioned"
    ELSEWHERE = "is for another node"
    GONE = "is gone"
    REFUSED = "may not be read or written"
    UNSURE = "could not be read"


async def bring(kube: Kube, namespace: str, name: str, node: str, *, timeout_s: float) -> ClaimState:
    """One step: what the claim says now; an unbound one that names no node yet is given this one."""
    answer = await writes.get_claim(kube, namespace, name, timeout_s=timeout_s)
    if answer.status == 404:
        return ClaimState.GONE
    if answer.status in (400, 403, 422):
        return ClaimState.REFUSED
    if not answer.ok:
        return ClaimState.UNSURE
    try:
        claim = claim_decoder.decode(answer.body)
    except msgspec.MsgspecError:
        return ClaimState.UNSURE
    state = judge(claim, node)
    if state is not None:
        return state
    meta = claim.metadata
    patched = await writes.select_node(
        kube, namespace, name, meta.uid, meta.resource_version, node, timeout_s=timeout_s
    )
    return ClaimState.REFUSED if patched.status in (400, 403, 422) else ClaimState.WAITING


def judge(claim: ClaimObject, node: str) -> ClaimState | None:
    """None: it waits for somebody to name a node."""
    meta = claim.metadata
    if meta.deletion_timestamp is not None:
        return ClaimState.GONE
    selected = (meta.annotations or {}).get(SELECTED_NODE, "")
    if selected and selected != node:
        return ClaimState.ELSEWHERE
    if is_bound(claim):
        # Without a node named it was bound by hand: to what, only a new decision can know.
        return ClaimState.READY if selected else ClaimState.ELSEWHERE
    return ClaimState.WAITING if selected else None
