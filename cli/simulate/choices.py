"""Names that simulations are told on the command line, checked: a wrong one is answered with those there are."""

from __future__ import annotations

from cli.errors import CommandError


def policies_of(text: str) -> tuple[str, ...]:
    """Packing policies by name, joined by commas. Raises CommandError."""
    from libs.engine.policies import POLICIES

    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in POLICIES:
            raise CommandError(f"no policy {name!r}; there are {', '.join(sorted(POLICIES))}")
    return names


def node_order_of(text: str) -> str:
    """Raises CommandError."""
    from libs.sim.arrivals import NODE_ORDERS

    if text not in NODE_ORDERS:
        raise CommandError(f"no node order {text!r}; there are {', '.join(NODE_ORDERS)}")
    return text
