"""Metrics in a registry of our own, made once by name.

prometheus_client refuses a name that exists, which punishes a module that is imported under two names or a service
that is built twice in one process (the embedded mode). Here asking again returns the metric that is there; asking
with another kind or other labels is a programming error and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

REGISTRY = CollectorRegistry(auto_describe=False)
ProcessCollector(registry=REGISTRY)

#: From 0.1 ms to 30 s: decisions, ledger calls, API calls and waits of jobs all lie in here.
LATENCY_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip

_Metric = Counter | Gauge | Histogram
_made: dict[str, tuple[type, tuple[str, ...], _Metric]] = {}

M = TypeVar("M", Counter, Gauge, Histogram)


def _known(kind: type[M], name: str, labels: Sequence[str]) -> M | None:
    found = _made.get(name)
    if found is None:
        return None
    if found[0] is not kind or found[1] != tuple(labels):
        raise ValueError(f"the metric {name} exists as {found[0].__name__} with labels {found[1]}")
    metric = found[2]
    assert isinstance(metric, kind)  # noqa: S101 - for the type checker; `found[0]` says the same
    return metric


def counter(name: str, help: str, labels: Sequence[str] = ()) -> Counter:
    known = _known(Counter, name, labels)
    if known is None:
        known = Counter(name, help, labels, registry=REGISTRY)
        _made[name] = (Counter, tuple(labels), known)
    return known


def gauge(name: str, help: str, labels: Sequence[str] = ()) -> Gauge:
    known = _known(Gauge, name, labels)
    if known is None:
        known = Gauge(name, help, labels, registry=REGISTRY)
        _made[name] = (Gauge, tuple(labels), known)
    return known


def histogram(
    name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS
) -> Histogram:
    known = _known(Histogram, name, labels)
    if known is None:
        known = Histogram(name, help, labels, registry=REGISTRY, buckets=buckets)
        _made[name] = (Histogram, tuple(labels), known)
    return known


def render() -> bytes:
    """Everything, in Prometheus' text format."""
    return generate_latest(REGISTRY)
