"""People with the cluster's ordinary roles: who may edit in a namespace may submit there, and nowhere else."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.load import LoadError, kubectl
from tools.stack import StackInfo

pytestmark = pytest.mark.real

JOB = {"id": "first", "roles": [{"replicas": 2, "template": {"image": "train:1", "resources": {"gpu": 1}}}]}


class Person:
    """tenant-a at a terminal; `role` is one of the cluster's own, in one namespace."""

    def __init__(self, info: StackInfo, namespace: str, job: Path) -> None:
        self.info, self.namespace, self.job = info, namespace, job

    def bind(self, role: str) -> None:
        kubectl(
            self.info, "create", "rolebinding", role, f"--clusterrole={role}", "--user=tenant-a", "-n", self.namespace
        )

    async def does(self, *arguments: str) -> tuple[int, Any]:
        """Exit code and the answer as JSON."""
        done = await asyncio.to_thread(
            subprocess.run,
            [str(Path(sys.executable).with_name("drystone")), *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.info.kubeconfig_for("tenant-a"))},
        )
        return done.returncode, json.loads(done.stdout)

    async def until_allowed(self, verb: str) -> None:
        """Roles are put together by a controller, a moment after they were made."""
        who = ["--as", "tenant-a", "-n", self.namespace]
        async with asyncio.timeout(30):
            while True:
                try:
                    kubectl(self.info, "auth", "can-i", verb, "trainingjobs.drystone.dev", *who)
                    return
                except LoadError:  # kubectl's way to say no
                    await asyncio.sleep(0.2)


@pytest.fixture
def person(info: StackInfo, namespace: str, tmp_path: Path) -> Person:
    job = tmp_path / "job.json"
    job.write_text(json.dumps(JOB))
    return Person(info, namespace, job)


async def test_who_may_edit_submits_sees_and_cancels_in_his_own_namespace_only(person: Person) -> None:
    person.bind("edit")
    await person.until_allowed("create")
    here = ("-n", person.namespace)
    code, said = await person.does("submit", str(person.job), *here)
    assert (code, said["namespace"], said["new"]) == (0, person.namespace, True)
    code, rows = await person.does("status", *here)
    assert (code, [row["id"] for row in rows]) == (0, ["first"])
    code, record = await person.does("why", "first", *here)
    assert (code, record["tasks"]) == (0, 2)
    code, said = await person.does("cancel", "first", *here)
    assert (code, said["cancelled"]) == (0, True)
    for arguments in (("submit", str(person.job), "-n", "default"), ("status", "-n", "default"), ("why", "default/x")):
        code, said = await person.does(*arguments)
        assert code == 1
        assert "403" in said["error"]
        assert "\n" not in said["error"]


async def test_who_may_view_sees_and_does_not_submit(person: Person) -> None:
    person.bind("view")
    await person.until_allowed("list")
    code, rows = await person.does("status", "-n", person.namespace)
    assert (code, rows) == (0, [])
    code, said = await person.does("submit", str(person.job), "-n", person.namespace)
    assert code == 1
    assert "403" in said["error"]


async def test_a_namespace_may_have_so_many_jobs_as_its_resource_quota_says(person: Person) -> None:
    person.bind("edit")
    await person.until_allowed("create")
    here = ("-n", person.namespace)
    kubectl(person.info, "create", "quota", "jobs", "--hard=count/trainingjobs.drystone.dev=1", *here)
    # The quota controller counts a kind that it has just learned of after up to five minutes, and nothing of it may be
    # made until then. Here that is said at once.
    counted = json.dumps({"status": {"used": {"count/trainingjobs.drystone.dev": "0"}}})
    kubectl(person.info, "patch", "quota", "jobs", "--subresource=status", "--type=merge", "-p", counted, *here)
    code, said = await person.does("submit", str(person.job), *here)
    assert (code, said["new"]) == (0, True)
    person.job.write_text(json.dumps({**JOB, "id": "second"}))
    code, said = await person.does("submit", str(person.job), *here)
    assert code == 1
    assert "exceeded quota: jobs" in said["error"]
