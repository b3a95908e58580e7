"""One engine's working state: the snapshot, what this pass took from it, and one feasibility per class of tasks.

What was taken tentatively is remembered per node, so that fresh truth about a node (`use_seen`) arriving within a pass
does not offer the same room twice, and so that `settle` can return to the ledger's truth by visiting only what changed.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final
from weakref import WeakValueDictionary

from libs.domain.jobs import Task
from libs.domain.resources import WHOLE, Charge, Request
from libs.domain.usage import NodeUse
from libs.domain.verdicts import FITS, Verdict
from libs.engine import explain
from libs.engine.api import EngineConfig, Placement
from libs.engine.ask import Ask, AskKey, ask_key
from libs.engine.consolidate.credit import Credit
from libs.engine.consolidate.keeping import Keeping
from libs.engine.draw import Draw
from libs.engine.fair.book import ServiceBook
from libs.engine.fair.runs import Runs
from libs.engine.feasible import Feasibility
from libs.engine.mix import TypicalMix
from libs.engine.policies import chosen
from libs.engine.policies.base import Base, Policy, Surroundings
from libs.engine.precision.demand import PrecisionDemand
from libs.engine.precision.table import default_table
from libs.engine.queues import QueueBook
from libs.engine.rules.book import Book, Placed, placed
from libs.engine.rules.feasible import RuledFeasibility
from libs.engine.running import RunningBook
from libs.engine.scores import Scores
from libs.engine.snapshot import Snapshot
from libs.engine.statement import Statement, Taken
from libs.engine.topology.confined import Confined
from libs.engine.topology.domains import Domains, Region

#: Classes kept ready; the least recently used goes first. One costs about 24 bytes per node,
#: and 8 per look of a node where no other one asks for the same CPU and GPUs.
CLASSES: Final = 512
#: Statements of one pass that are remembered.
STATEMENTS: Final = 16_384


class Session:
    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.snapshot = Snapshot()
        self.queues = QueueBook(config.fairness, config.history)
        self.running = RunningBook()
        self.book = Book(self.snapshot)
        self.runs = Runs()
        self.service = ServiceBook(
            config.little, config.overdue_s, self.running, self.queues, lambda: self.snapshot.total()[0] / WHOLE
        )
        self.mix = TypicalMix(config.typical, config.mix_slots)
        self._draw = Draw(config.seed)
        self.precisions = PrecisionDemand(config.mix_slots)
        #: Whether any task so far declared a precision.
        self.declares = False
        self.table = default_table().extended(config.gpu_models)
        around = Surroundings(self.snapshot, self.mix, self.charges, self._draw, self.precisions, self.table)
        self.policies = chosen(config.weights, around)
        #: For tasks that declare no precision.
        self._plain = tuple(p for p in self.policies if not p[0].declared_only) or self.policies
        #: Devices within a node are chosen by the policy of greatest weight.
        self.choose = max(self._plain, key=lambda p: p[1], default=(Base(around), 0))[0].choose
        self._draws = any(policy.draws for policy, _ in self.policies)
        self._fits = FITS
        self._fits_at: tuple[int, ...] | None = None
        #: Who was asked for last stands last.
        self._classes: dict[AskKey, Feasibility] = {}
        #: Kept as long as any class has them.
        self._scores: WeakValueDictionary[Request, Scores] = WeakValueDictionary()
        self._taken: dict[int, list[tuple[Charge, int]]] = {}
        self._given: set[int] = set()
        self._placed: set[str] = set()
        self._marked: set[str] = set()
        #: Of this pass, in the order in which they were begun.
        self._statements: list[Statement] = []
        self.now = 0.0
        #: Jobs whose earmarks were given back and used in this pass: once is enough.
        self.given_back: set[str] = set()
        self.moving = Credit()
        self.keeping = Keeping()
        self._keeps = False
        #: Jobs that no moves helped: the snapshot's version and the time of that.
        self.moved_in_vain: dict[Hashable, tuple[int, float]] = {}
        #: What actions remember for the length of a pass, by (what, ...).
        self.memo: dict[tuple[Any, ...], Any] = {}
        self.domains = Domains(self.snapshot, self.book.topology, config.levels)
        #: Where tasks of the job being decided may be, by id; None: nobody is confined.
        self.regions: dict[str, Region] | None = None
        self._confined: dict[tuple[Feasibility, Region], Confined] = {}

    # -- classes ----------------------------------------------------------------------------------------------------
    def feasible(self, task: Task) -> Feasibility:
        """The up-to-date feasibility of the task's class."""
        key = ask_key(task, self.book.speaking_of(task))
        found = self._classes.pop(key, None)
        if found is None:
            if len(self._classes) >= CLASSES:
                del self._classes[next(iter(self._classes))]
            ask = Ask(key, self.table)
            self.declares = self.declares or bool(ask.gpu.precision)
            policies = self.policies if ask.gpu.precision else self._plain
            scores = self._scored(ask, policies)
            if ask.scope is None and not ask.extra:
                found = Feasibility(self.snapshot, ask, policies, scores)
            else:
                found = RuledFeasibility(self.snapshot, ask, policies, self.book, scores)
        self._classes[key] = found
        found.refresh()
        return found if self.regions is None else self._within(found, task)

    def _scored(self, ask: Ask, policies: tuple[tuple[Policy, int], ...]) -> Scores:
        """What classes that ask for the same CPU and GPUs share, as far as it is the same for them."""
        mem = ask.mem if any(policy.by_memory for policy, _ in policies) else 0
        request = Request(ask.cpu, mem, ask.gpu)
        found = self._scores.get(request)
        if found is None or not found.by_look:
            found = Scores(self.snapshot, Ask((request, (), (), None), self.table), policies)
            self._scores[request] = found
        return found

    def _within(self, view: Feasibility, task: Task) -> Feasibility:
        region = self.regions.get(task.id) if self.regions is not None else None
        if region is None:
            return view
        found = self._confined.get((view, region))
        if found is None:
            found = self._confined[view, region] = Confined(view, region)
        return found

    def confine(self, regions: dict[str, Region] | None) -> None:
        """From now on these tasks may be in these regions only; None: everybody anywhere again."""
        self.regions = regions
        if regions is None:
            self._confined.clear()

    def begin(self, now: float = 0.0) -> None:
        """Start of a pass. `now`: seconds since the epoch, 0 where nobody knows."""
        self.now = now
        self.running.pass_begins(now)
        self.snapshot.trim()
        self.book.trim()
        self.memo.clear()
        if len(self._statements) > STATEMENTS:
            del self._statements[: STATEMENTS // 2]  # nobody settles
        if not self._keeps:
            self._keeps = True
            for kept in self.keeping.current(now):
                row = self.snapshot.rows.get(kept.node)
                if row is not None:
                    self.hold(row, kept.charge, 1)

    def pick(self, view: Feasibility) -> int:
        """The node for the next task: the best, or a seeded draw among the best where replicas contend."""
        if self._draws:
            rows = view.top(len(view.keys))  # all that fit
            return rows[self._draw.below(len(rows))] if rows else -1
        if self.config.candidates <= 1:
            return view.best()
        rows = view.top(self.config.candidates)
        return rows[self._draw.below(len(rows))] if rows else -1

    @property
    def fits(self) -> Verdict:
        """The verdict Fits, naming the policies, and what they have learned."""
        policies = self.policies if self.declares else self._plain
        epochs = tuple([policy.epoch() for policy, _ in policies])
        if epochs != self._fits_at:
            self._fits_at = epochs
            names = [f"{p.name}@{p.learned}" if p.learned else p.name for p, _ in policies]
            self._fits = Verdict(kind=FITS.kind, policy="+".join(names))
        return self._fits

    def refusal(self, view: Feasibility, task: Task) -> Verdict:
        """Why the task fits no node now."""
        return explain.refusal(self.snapshot, view, task.name) if self.config.explain else explain.UNEXPLAINED

    def charges(self, row: int) -> list[Charge]:
        """What is known to be on the node of a row: running pods, and what this pass placed."""
        state = self.snapshot.states[row]
        bound = self.running.by_node.get(state.name, {}).values() if state is not None else ()
        return [task.charge for task in bound] + [charge for charge, _ in self._taken.get(row, ())]

    def statement(self) -> Statement:
        statement = Statement(self.snapshot, self.queues, self.running, self.book)
        self._statements.append(statement)
        return statement

    def resident(self, task: Task, row: int) -> Placed | None:
        """What other pods' rules will see of the task on this node."""
        state = self.snapshot.states[row]
        return None if state is None else placed(task, state.name)

    def placement(self, task: Task, row: int, charge: Charge) -> Placement:
        state = self.snapshot.states[row]
        if state is None:
            raise LookupError(f"no node at row {row}")
        return Placement(task, state.name, state.node.spec, charge)

    # -- what a pass leaves behind ------------------------------------------------------------------------------------
    def keep(self, statement: Statement) -> None:
        """The statement stands: remember it until `settle`."""
        for op in statement.operations:
            if isinstance(op, Taken):
                self._taken.setdefault(op.row, []).append((op.charge, 1))
                if op.pod is not None:
                    self._placed.add(op.pod.uid)
            elif op.row >= 0:
                self._given.add(op.row)

    def hold(self, row: int, charge: Charge, pods: int) -> None:
        """Take room until `settle`, outside of any statement."""
        self.snapshot.take(row, charge, pods)
        self._taken.setdefault(row, []).append((charge, pods))

    def stand(self, placement: Placement) -> None:
        """Other pods' rules see the task on its node until `settle`."""
        self.book.assume(placed(placement.task, placement.node))
        self._placed.add(placement.task.id)

    def assume(self, task: Task, node: str) -> None:
        """What was placed tentatively was accepted: it stays when the pass is settled."""
        self._placed.discard(task.id)
        self.book.assume(placed(task, node))

    def allowed(self, placement: Placement) -> bool:
        """Whether rules allow a task where it was placed tentatively, beside all others."""
        if not self.feasible(placement.task).ruled:
            return True
        task, row = placement.task, self.snapshot.rows[placement.node]
        self.book.forget(task.id)
        admitted = self.feasible(task).admits(row)
        self.book.assume(placed(task, placement.node))
        return admitted

    def mark(self, uid: str) -> None:
        self.running.mark(uid)
        self._marked.add(uid)

    def use_seen(self, use: NodeUse) -> bool:
        if not self.snapshot.use_seen(use):
            return False
        row = self.snapshot.rows.get(use.node)
        if row is not None:
            for charge, pods in self._taken.get(row, ()):
                self.snapshot.take(row, charge, pods)
        return True

    def row_replaced(self, row: int) -> None:
        """The node at this row was built anew from the truth."""
        for charge, pods in self._taken.get(row, ()):
            self.snapshot.take(row, charge, pods)

    def row_gone(self, row: int) -> None:
        self._taken.pop(row, None)
        self._given.discard(row)

    def settle(self) -> None:
        self._keeps = False
        for row in self._taken.keys() | self._given:
            self.snapshot.reset(row)
        for uid in self._placed:
            self.book.forget(uid)
        self._placed.clear()
        self._taken.clear()
        self._given.clear()
        self.running.unmark(self._marked)
        self._marked = set()
        self.queues.settle()
        self.given_back.clear()
        self.memo.clear()
        self._statements.clear()

    def abandon(self) -> None:
        """The pass failed midway: as `settle`, for what was not finished too, and nothing that was worked out from it
        is believed."""
        for statement in reversed(self._statements):
            statement.rollback()
        for row in range(len(self.snapshot.states)):
            self.snapshot.reset(row)
        self._classes.clear()
        self._fits_at = None
        self.confine(None)
        self.settle()
