"""`drystone check` on the running system: it names the mode, and what somebody breaks by hand it tells, with exit 1."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from libs.domain import keys
from libs.host.seen import look
from tests.e2e.world import World

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


async def check(world: World) -> tuple[int, dict[str, Any]]:
    command = [str(Path(sys.executable).with_name("drystone")), "check", "--json"]
    command += ["--kubeconfig", str(world.info.kubeconfig), "--redis", world.info.redis_url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


async def test_a_charge_that_somebody_takes_out_of_redis_is_a_broken_law(world: World) -> None:
    began = time.time()
    await world.nodes(1)
    queue = await world.queue(limit_gpus=4)
    await world.create(world.pod("train", gpus=2, annotations={keys.QUEUE: queue}))
    pods = await world.until(lambda pods: pods["train"].view.phase == "Running")
    uid = pods["train"].view.uid
    await world.until_held(lambda held: [h.state for h in held] == ["bound"])
    assert await check(world) == (0, {"broken": [], "exclusive": "off"})
    seen = await look(world.load.kube, world.ledger)
    assert seen.queues[queue].gpu_milli == 4000
    assert seen.limited_since[queue] >= began - 2, "the server's own time, of the second"
    assert seen.bound_at[uid] >= seen.limited_since[queue]

    server = redis.asyncio.from_url(world.info.redis_url)
    try:
        # A slow pass of the watcher's would charge the pod once more, in the middle of this or after it.
        async with world.paused("watcher"):
            held = await server.hget("{drystone}:tasks", uid)
            assert await server.hdel("{drystone}:tasks", uid) == 1
            try:
                code, said = await check(world)
            finally:
                await server.hset("{drystone}:tasks", uid, held)
    finally:
        await server.aclose()
    assert code == 1
    broken = {(row["law"], row["about"]) for row in said["broken"]}
    assert ("bound pod not charged", f"{world.namespace}/train") in broken
    assert ("node usage is not the sum", world.node_names[0]) in broken
    assert ("queue usage is not the sum", queue) in broken
