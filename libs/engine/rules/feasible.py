"""Feasibility of tasks that have placement rules, or that rules of other pods speak of.

The base class knows the nodes' own facts and free room. On top of that: host ports and other resources, followed node
by node; and rules between pods, recomputed over all nodes at once when a count that they read has changed. A class
without such rules never comes here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from libs.domain.rules import PodTerm, Spread
from libs.domain.verdicts import Reason
from libs.engine.ask import Ask
from libs.engine.columns import Bools, Ints
from libs.engine.feasible import RANK_BITS, Feasibility
from libs.engine.filters import CODE, DEAD, taint_code
from libs.engine.policies.base import Policy
from libs.engine.rules.book import Book, Kind
from libs.engine.rules.counts import Counts, Stamp, stamp
from libs.engine.rules.match import node_matches, selects
from libs.engine.scores import Scores
from libs.engine.snapshot import Snapshot

HOST: Final = "kubernetes.io/hostname"
#: A domain that holds nothing yet, where no domain counts at all.
_NO_MINIMUM: Final = 2**31 - 1


class _Domains(NamedTuple):
    """One constraint's topology: the domain of each row, the rows that count with their domains, which domains are
    there and how many, and the rows without the label."""

    domain: Ints
    size: int
    rows: Ints
    here: Ints
    present: Bools
    there: int
    lacking: Bools


class RuledFeasibility(Feasibility):
    ruled = True

    def __init__(
        self,
        snapshot: Snapshot,
        ask: Ask,
        policies: tuple[tuple[Policy, int], ...],
        book: Book,
        scores: Scores | None = None,
    ) -> None:
        super().__init__(snapshot, ask, policies, scores)
        self._book = book
        self._local: Ints = np.zeros(0, np.int64)
        self._between: Ints = np.zeros(0, np.int64)
        self._local_at: tuple[object, ...] = ()
        self._log_at = 0
        self._between_at: tuple[object, ...] = ()
        rules, scope = ask.rules, ask.scope
        self._ports = rules.ports if rules is not None else ()
        self._claims = rules.claims if rules is not None else ()
        self._affinity = rules.affinity if rules is not None else ()
        self._anti = rules.anti_affinity if rules is not None else ()
        self._spread = rules.spread if rules is not None else ()
        self._labels = dict(scope.labels) if scope is not None else {}
        self._namespace = scope.namespace if scope is not None else ""
        self._preferred = rules.preferred if rules is not None else ()
        self._bonus: Ints = np.zeros(0, np.int64)
        self._bonus_at: Stamp = (-1, -1)
        self._domains_at: tuple[object, ...] = ()
        self._spreads: list[_Domains] = []
        self._repelling_version = -1
        self._repelled: list[tuple[PodTerm, Counts]] = []

    # -- preferences --------------------------------------------------------------------------------------------------
    def _follow_preferred(self) -> None:
        """How much of the preferences each row meets, as a part of what all policies together can say."""
        snapshot, now = self._snapshot, stamp(self._snapshot)
        if now == self._bonus_at and len(self._bonus) == snapshot.capacity:
            return
        rows: range | set[int]
        if now[0] != self._bonus_at[0] or len(self._bonus) != snapshot.capacity:
            self._bonus, rows = np.zeros(snapshot.capacity, np.int64), range(len(snapshot.states))
        else:
            rows = set(snapshot.spec_changes[self._bonus_at[1] :])
        self._bonus_at = now
        most = sum(weight for weight, _ in self._preferred)
        for row in rows:
            state = snapshot.states[row]
            if state is not None:
                node = state.node
                met = sum(w for w, term in self._preferred if node_matches((term,), node.labels, node.name))
                self._bonus[row] = self._liked * met // most

    def _place(self, rows: Ints) -> Ints:
        places = super()._place(rows)
        if self._preferred:
            self._follow_preferred()
            places = np.where(places >= 0, places + (self._bonus[rows] << RANK_BITS), places)
        return places

    # -- keeping up -------------------------------------------------------------------------------------------------
    def refresh(self) -> None:
        super().refresh()
        self._refresh_local()
        if self._namespace:
            self._refresh_between()

    def _refresh_local(self) -> None:
        if not self._ports and not self.ask.extra and not self._claims:
            return
        snapshot, book = self._snapshot, self._book
        now = (snapshot.shape, len(snapshot.spec_changes), book.epoch)
        rows: range | set[int]
        if now != self._local_at or len(self._local) != snapshot.capacity:
            self._local = np.zeros(snapshot.capacity, np.int64)
            rows = range(len(snapshot.states))
            self._local_at = now
        elif self._log_at == len(book.log):
            return
        else:
            rows = {row for name in book.log[self._log_at :] if (row := snapshot.rows.get(name)) is not None}
        self._log_at = len(book.log)
        for row in rows:
            self._local[row] = self._local_code(row)

    def _local_code(self, row: int) -> int:
        state = self._snapshot.states[row]
        if state is None:
            return 0
        book, name = self._book, state.name
        if self._ports and book.port_taken(name, self._ports):
            return CODE[Reason.PORTS]
        for resource, amount in self.ask.extra:
            if book.extra_used(name, resource) + amount > state.node.extra.get(resource, 0):
                return CODE[Reason.EXTRA]
        if self._claims:
            reason = book.volumes.objection(state.node, self._namespace, self._claims)
            if reason is not None:
                return CODE[reason]
        return 0

    def _refresh_between(self) -> None:
        book, snapshot = self._book, self._snapshot
        if self._repelling_version != book.repelling_version:
            self._repelling_version = book.repelling_version
            self._repelled = book.repelled(self._namespace, self._labels)
        near = book.table(Kind(self._affinity)) if self._affinity else None
        far = [book.table(Kind((term,))) for term in self._anti]
        spread = [book.table(Kind((), self._namespace, c.selector)) for c in self._spread]
        counts = [*([near] if near is not None else ()), *far, *spread, *(c for _, c in self._repelled)]
        now = (stamp(snapshot), book.epoch, book.repelling_version, *(c.version for c in counts))
        if now == self._between_at and len(self._between) == snapshot.capacity:
            return
        self._between_at = now
        codes = np.zeros(snapshot.capacity, np.int64)
        self._apply_spread(codes, spread)
        if near is not None:
            self._apply_affinity(codes, near)
        for term, table in zip(self._anti, far, strict=True):
            _set(codes, self._occupied(term.topology, table), Reason.ANTI_AFFINITY)
        for term, table in self._repelled:
            _set(codes, self._occupied(term.topology, table), Reason.REPELLED)
        self._between = codes

    # -- rules between pods -----------------------------------------------------------------------------------------
    def _domains(self, topology: str) -> tuple[Ints, int]:
        codes = self._book.topology.codes(topology)
        return codes, max(self._book.topology.size(topology), 1)

    def _occupied(self, topology: str, counts: Counts) -> Bools:
        """Rows in a domain that has at least one of the pods."""
        codes, size = self._domains(topology)
        if not counts.total:
            return np.zeros(len(codes), np.bool_)
        held = np.zeros(size + 1, np.bool_)
        held[codes[counts.vector(self._snapshot) > 0]] = True
        held[-1] = False  # rows without the label
        return np.asarray(held[codes], np.bool_)

    def _apply_affinity(self, codes: Ints, near: Counts) -> None:
        satisfied = np.ones(len(codes), np.bool_)
        placeable = np.ones(len(codes), np.bool_)
        counted = np.zeros(len(codes), np.bool_)
        for term in self._affinity:
            domain, _ = self._domains(term.topology)
            placeable &= domain >= 0
            counted |= domain >= 0
            satisfied &= self._occupied(term.topology, near)
        _set(codes, ~placeable & self._snapshot.alive, Reason.TOPOLOGY)
        # The first pod of a group whose affinity means itself starts anywhere.
        if not near.vector(self._snapshot)[counted].any() and self._means_itself():
            return
        _set(codes, ~satisfied, Reason.POD_AFFINITY)

    def _means_itself(self) -> bool:
        kind = Kind(self._affinity)
        return self._book.counts(kind, self._namespace, self._labels)

    def _apply_spread(self, codes: Ints, tables: list[Counts]) -> None:
        if not self._spread:
            return
        snapshot = self._snapshot
        now = (stamp(snapshot), snapshot.capacity)
        if self._domains_at != now:
            self._domains_at = now
            self._spreads = self._spread_domains()
        for constraint, known, table in zip(self._spread, self._spreads, tables, strict=True):
            _set(codes, known.lacking, Reason.TOPOLOGY)
            held = np.bincount(known.here, table.vector(snapshot)[known.rows], known.size)
            least = int(held[known.present].min()) if known.there else _NO_MINIMUM
            if known.there < constraint.min_domains:
                least = 0
            own = int(selects(constraint.selector, self._labels))
            skewed = np.zeros(known.size + 1, np.bool_)  # the last one: rows without the label
            skewed[: known.size] = held + own - least > constraint.skew
            _set(codes, skewed[known.domain], Reason.SPREAD)

    def _spread_domains(self) -> list[_Domains]:
        """What of spreading depends on the nodes' facts alone."""
        snapshot = self._snapshot
        domains = [self._domains(constraint.topology) for constraint in self._spread]
        counting = snapshot.alive.copy()
        for domain, _ in domains:
            counting &= domain >= 0
        found = []
        for constraint, (domain, size) in zip(self._spread, domains, strict=True):
            rows = np.flatnonzero(counting & self._eligible(constraint))
            here = domain[rows]
            present = np.bincount(here, minlength=size) > 0
            lacking = (domain < 0) & snapshot.alive
            found.append(_Domains(domain, size, rows, here, present, int(present.sum()), lacking))
        return found

    def _eligible(self, constraint: Spread) -> Bools:
        """Rows that count as domains: by the pod's node affinity, by its tolerations, as the constraint says."""
        snapshot = self._snapshot
        rows = snapshot.alive.copy()
        if constraint.affinity:
            rows &= ~np.isin(self.codes, _UNWANTED)
        if constraint.taints:
            table = [taint_code(taints, self.ask.tolerations) == 0 for taints in snapshot.taint_sets]
            rows &= np.asarray(table, np.bool_)[snapshot.taint]
        return rows

    # -- answers ----------------------------------------------------------------------------------------------------
    def _barred(self) -> Ints:
        """Codes of the rules that need more than the node's own facts and room."""
        codes = np.zeros(len(self.keys), np.int64)
        if len(self._between):
            codes = self._between.copy()
        if len(self._local):
            codes = np.where(codes == 0, self._local, codes)
        if self._claims:
            reason = self._book.volumes.barrier(self._namespace, self._claims)
            if reason is not None:
                codes[self._snapshot.alive] = CODE[reason]
        return codes

    def now(self) -> Ints:
        return self._open()

    def _open(self) -> Ints:
        return np.where(self._barred() == 0, self.keys, -1)

    def best(self) -> int:
        keys = self._open()
        if not len(keys):
            return -1
        row = int(keys.argmax())
        return row if keys[row] >= 0 else -1

    def top(self, count: int) -> list[int]:
        keys = self._open()
        return [row for row in np.argsort(-keys, kind="stable")[:count].tolist() if keys[row] >= 0]

    def fits(self, row: int) -> bool:
        return bool(self._open()[row] >= 0)

    def admits(self, row: int) -> bool:
        return not self._barred()[row]

    def more_nodes_help(self) -> bool:
        if not super().more_nodes_help():
            return False
        if self._claims and self._book.volumes.barrier(self._namespace, self._claims) is not None:
            return False
        if not self._affinity:
            return True
        if not self._book.table(Kind(self._affinity)).total:
            return self._means_itself()  # the first of its group, else there is nobody to be near
        # Nobody whom the task must join is on a new node; one in the same wider domain may be near.
        return all(term.topology != HOST for term in self._affinity)

    def codes_now(self) -> Ints:
        codes = super().codes_now()
        barred = self._barred()
        return np.where(codes == 0, barred, codes)


#: Static codes that say that a node is not one the pod's selector and affinity ask for; they come before all others.
_UNWANTED: Final = np.asarray([DEAD, CODE[Reason.SELECTOR], CODE[Reason.AFFINITY]], np.int64)


def _set(codes: Ints, where: Bools, reason: Reason) -> None:
    codes[where & (codes == 0)] = CODE[reason]
