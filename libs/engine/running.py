"""Running pods by node and by job: what preemption chooses from."""

from __future__ import annotations

from libs.engine.api import RunningTask


class RunningBook:
    """`marked` are pods that make room for somebody already, as decided here and not yet shown by the cluster."""

    def __init__(self) -> None:
        self.by_uid: dict[str, RunningTask] = {}
        self.by_node: dict[str, dict[str, RunningTask]] = {}
        self.by_job: dict[str, dict[str, RunningTask]] = {}
        self.marked: set[str] = set()
        self._floors: dict[str, int] = {}
        self._dirty: set[str] = set()

    def seen(self, task: RunningTask) -> None:
        old = self.by_uid.get(task.uid)
        if old is not None and (old.node != task.node or old.job != task.job):
            self.gone(task.uid)
        self.by_uid[task.uid] = task
        self.by_node.setdefault(task.node, {})[task.uid] = task
        if task.job:
            self.by_job.setdefault(task.job, {})[task.uid] = task
        self._dirty.add(task.node)

    def gone(self, uid: str) -> None:
        task = self.by_uid.pop(uid, None)
        self.marked.discard(uid)
        if task is None:
            return
        for index, key in ((self.by_node, task.node), (self.by_job, task.job)):
            pods = index.get(key)
            if pods is not None:
                pods.pop(uid, None)
                if not pods:
                    del index[key]
        self._dirty.add(task.node)

    def mark(self, uid: str) -> None:
        self.marked.add(uid)
        task = self.by_uid.get(uid)
        if task is not None:
            self._dirty.add(task.node)

    def unmark(self, uids: set[str]) -> None:
        for uid in uids:
            self.marked.discard(uid)
            task = self.by_uid.get(uid)
            if task is not None:
                self._dirty.add(task.node)

    def stays(self, task: RunningTask) -> bool:
        """Neither leaving by itself nor made to leave."""
        return not task.terminating and not task.marked and task.uid not in self.marked

    def floors(self) -> dict[str, int]:
        """Node -> lowest priority among its evictable pods; nodes without one are absent."""
        for name in self._dirty:
            priorities = [t.priority for t in self.by_node.get(name, {}).values() if t.ours and self.stays(t)]
            if priorities:
                self._floors[name] = min(priorities)
            else:
                self._floors.pop(name, None)
        self._dirty.clear()
        return self._floors
