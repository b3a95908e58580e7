"""A few hundred hostile job events on the running system. `drystone bench fuzz` is the same with ten thousand."""

import pytest

from bench.fuzz import Bombardment, dead, lag
from tests.e2e.world import World

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


async def test_hostile_events_are_each_answered_once_and_good_jobs_among_them_are_taken(world: World) -> None:
    await world.nodes(2)
    attack = Bombardment(world.info, f"fuzz-{world.namespace}", seed=7, rate=100.0)
    await attack.run(300)
    # A machine that is busy with other things may let everybody wait; the bench has the limit for an idle one.
    assert attack.broken(most_stall_s=10.0) == []
    assert dead(world.fleet) == []
    assert await lag(world.info) == 0
    said = attack.summary()
    assert said["sent"] == sum(said[what] for what in ("accepted", "duplicates", "cancelled", "dead_letters"))
    assert min(said[what] for what in ("accepted", "duplicates", "cancelled", "dead_letters", "canaries")) > 0
