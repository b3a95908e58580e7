"""What the ledger costs: commits per second as a caller sees them, and microseconds and redis calls per function.

`python -m bench.ledger --json [--url redis://...]`; without a url a redis-server of its own is started on a free port.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from libs.domain.nodes import Gpu, Node
from libs.domain.plans import Assignment, Plan
from libs.domain.queues import Queue
from libs.domain.resources import Charge, GpuGrant
from libs.store.port import TaskSeen
from libs.store.redis import RedisLedger


async def measure(url: str, nodes: int, batches: int) -> dict[str, Any]:
    ledger = RedisLedger(url, prefix=f"{{bench{nodes}}}")
    await ledger.open()
    generation = (await ledger.begin_rebuild(1)).generation
    gpus = tuple(Gpu(i, 80000) for i in range(8))
    facts = [Node(f"n{i}", "u", "1", "s", cpu=10**6, mem=10**6, pods=1000, gpus=gpus) for i in range(nodes)]
    await ledger.nodes_seen(facts, 1)
    await ledger.queues_seen([Queue(path="org/team", gpu_milli=10**9, version="1")], [], 1)
    await ledger.whole(1)
    epoch = (await ledger.take(0)).epoch
    serial = 0

    def plans(count: int) -> list[Plan]:
        nonlocal serial
        out = []
        for _ in range(count):
            serial += 1
            charge = Charge(cpu=1, mem=1, gpus=(GpuGrant(serial % 8, 10, 800),))
            a = Assignment(f"c{serial}", f"t{serial}", "x", f"n{serial * 7 % nodes}", "s", charge)
            out.append(
                Plan(f"p{serial}", f"j{serial}", "", "d", "org/team", 0, epoch, generation, False, assignments=(a,))
            )
        return out

    report: dict[str, Any] = {"nodes": nodes, "functions": {}}

    async def step(name: str, calls: int, act: Callable[[int], Awaitable[object]]) -> float:
        await ledger.server.client.config_resetstat()
        begun = time.perf_counter()
        for n in range(calls):
            await act(n)
        took = time.perf_counter() - begun
        stats: dict[str, dict[str, float]] = await ledger.server.client.info("commandstats")
        inner = sum(int(s["calls"]) for k, s in stats.items() if k not in _OUTER)
        report["functions"][name] = {
            "us": round(stats["cmdstat_fcall"]["usec_per_call"], 1),
            "redis_calls": round(inner / calls, 1),
        }
        return took

    for size, calls in ((1, batches * 20), (256, batches)):
        work = [plans(size) for _ in range(calls)]
        took = await step(f"commit x{size}", calls, lambda n, work=work: ledger.commit(work[n]))  # type: ignore[misc]
        report[f"commits_per_s_batch_{size}"] = round(size * calls / took)
        await step(f"begin x{size}", calls, lambda n, work=work: ledger.begin(work[n]))  # type: ignore[misc]
        half = calls // 2
        await step(
            f"confirm x{size}",
            half,
            lambda n, work=work: ledger.confirm(  # type: ignore[misc]
                {p.assignments[0].claim: p.assignments[0].task for p in work[n]}, generation
            ),
        )
        seen = [
            [
                TaskSeen(a.task, "5", a.node, a.charge, queue=p.queue, job=p.job, claim=a.claim)
                for p in batch
                for a in p.assignments
            ]
            for batch in work[half:]
        ]
        await step(
            f"tasks_seen x{size}",
            len(seen),
            lambda n, seen=seen: ledger.tasks_seen(seen[n], 1),  # type: ignore[misc]
        )
        await step(
            f"tasks_gone x{size}",
            calls,
            lambda n, work=work: ledger.tasks_gone([p.assignments[0].task for p in work[n]], 1),  # type: ignore[misc]
        )
    await ledger.close()
    return report


_OUTER = frozenset({"cmdstat_fcall", "cmdstat_info", "cmdstat_config|resetstat", "cmdstat_client|setinfo"})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    if options.url:
        report = asyncio.run(measure(options.url, options.nodes, options.batches))
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            try:
                time.sleep(0.5)
                report = asyncio.run(measure(f"redis://127.0.0.1:{port}", options.nodes, options.batches))
            finally:
                server.terminate()
                server.wait(10)
    sys.stdout.write(json.dumps(report, indent=None if options.json else 2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
