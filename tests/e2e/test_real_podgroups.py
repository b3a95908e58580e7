"""PodGroups of other schedulers' projects, installed while the services run: their pods wait with a word until then."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.world import World, bound
from tools.load import kubectl

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

_CRDS: Final = Path(__file__).with_name("podgroups.yaml")
#: How a pod names its group, and where such groups are, by project.
_PROJECTS: Final = {
    "plugins": ("labels", "scheduling.x-k8s.io/pod-group", "scheduling.x-k8s.io/v1alpha1"),
    "volcano": ("annotations", "scheduling.k8s.io/group-name", "scheduling.volcano.sh/v1beta1"),
    "kai": ("annotations", "pod-group-name", "scheduling.run.ai/v2alpha2"),
}


async def test_pods_of_podgroups_wait_with_a_word_until_their_group_is_there_and_start_together(world: World) -> None:
    await world.nodes(1)
    marks = {project: {where: {key: project}} for project, (where, key, _) in _PROJECTS.items()}
    async with world.listening() as heard:
        pods = [world.pod(f"{project}-{n}", **said) for project, said in marks.items() for n in range(2)]
        await world.create(*pods)
        seen = await world.until(lambda pods: len(pods) == 6 and all(pod.reason for pod in pods.values()))
        assert {pod.reason for pod in seen.values()} == {"PodGroupNotSeen"}
        for project in _PROJECTS:
            condition = seen[f"{project}-0"].condition
            assert condition is not None
            assert f"PodGroup {world.namespace}/{project} has not been seen" in (condition.message or "")
            assert "helps: that PodGroup created" in (condition.message or "")
            (told, *_) = heard.about(f"podgroup/{world.namespace}/{project}")
            assert told.verdict is not None
            assert told.verdict.kind == "NotNow"
    command = [str(Path(sys.executable).with_name("drystone")), "why", f"{world.namespace}/kai-1"]
    command += ["--kubeconfig", str(world.info.kubeconfig)]
    said = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert f"PodGroupNotSeen: PodGroup {world.namespace}/kai has not been seen" in said.stdout
    await asyncio.to_thread(kubectl, world.info, "apply", "--server-side", "-f", str(_CRDS))
    await asyncio.to_thread(kubectl, world.info, "wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    groups = [
        {
            "apiVersion": version,
            "kind": "PodGroup",
            "metadata": {"name": project, "namespace": world.namespace},
            "spec": {"minMember": 2 if project != "kai" else 3},
        }
        for project, (_, _, version) in _PROJECTS.items()
    ]
    kinds = json.dumps({"apiVersion": "v1", "kind": "List", "items": groups})
    await asyncio.to_thread(lambda: kubectl(world.info, "apply", "-f", "-", stdin=kinds))
    seen = await world.until(lambda pods: len(bound(pods)) == 4 and pods["kai-0"].reason == "GangIncomplete")
    assert bound(seen, ["kai-0", "kai-1"]) == [], "its group says three, and there are two"
    await world.create(world.pod("kai-2", **marks["kai"]))
    await world.until(lambda pods: len(bound(pods)) == 7)
