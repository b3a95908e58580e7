"""Jobs as load: what intake takes, when a task counts as bound, and who takes its pod away."""

from __future__ import annotations

import asyncio
import time

from bench.steady import Meta, Pod, Spec, Status
from bench.steady_jobs import SteadyJobs, event
from libs.contracts.strict import Rejected
from libs.contracts.submission import parse_submit
from libs.contracts.tenants import TenantPolicy
from libs.domain import keys
from tests.unit.bench.test_steady import Moody, until


def task(name: str, node: str = "node-1", phase: str = "") -> Pod:
    return Pod(Meta(name=name, labels={keys.JOB: "job-1"}), Spec(nodeName=node), Status(phase=phase))


def test_its_jobs_are_jobs_that_intake_takes_and_their_objects_may_go_at_once() -> None:
    submission = parse_submit(event("job-1", 10), TenantPolicy(namespaces=("default",)))
    assert not isinstance(submission, Rejected), submission
    assert [(role["name"], role["replicas"]) for role in submission.spec["roles"]] == [("worker", 10)]
    assert submission.spec["ttlSecondsAfterFinished"] == 0


def test_a_task_is_bound_once_and_waited_since_the_broker_had_its_job() -> None:
    jobs = SteadyJobs(Moody(), "nowhere:1", 10.0)
    jobs._accepted["job-1"] = time.monotonic() - 5.0
    jobs.made = 10
    jobs._look(task("a", node=""))
    jobs._look(task("a"))
    jobs._look(task("a"))
    jobs._look(task("b", phase="Succeeded"))
    assert (jobs.bound, jobs.unbound) == (1, 9)
    assert 5.0 <= jobs.pods["a"].wait < 60.0
    jobs._gone("a")
    jobs.forget(time.monotonic() + 1.0)
    assert jobs.pods == {}


async def test_pods_go_when_the_object_of_their_job_is_gone_and_not_before() -> None:
    kube = Moody()
    jobs = SteadyJobs(kube, "nowhere:1", 10.0)
    jobs._accepted |= {"job-1": 0.0, "job-2": 0.0}
    async with asyncio.TaskGroup() as jobs._group:
        jobs._look_at_job(Pod(Meta(name="job-1"), Spec(), Status(phase="Succeeded")))
        jobs._look_at_job(Pod(Meta(name="job-2"), Spec(), Status(phase="Failed")))
        await asyncio.sleep(0)
        assert kube.collected == []
        jobs._job_gone("job-1")
        await until(lambda: bool(kube.collected))
    assert kube.collected == [f"{keys.JOB}=job-1"], "a refused call is made again"
    assert (jobs.left, jobs.finished, jobs.failed) == (1, 1, ["job-2: Failed"])
    assert kube.refuse == 0
