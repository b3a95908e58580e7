"""Random clusters and pods, as objects for an API server: nodes, namespaces, pods that run, pods that ask for a node.

Everything follows from the seed. Values are drawn from small sets, so that rules meet pods and nodes often, and amounts
of memory are whole MiB (what is finer is rounded by the engine, on the safe side).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tools.differential.objects import claim, csi_node
from tools.differential.wishes import Wishes
from tools.differential.words import (
    APPS,
    DRIVER,
    FIRST,
    FIRST_USE_CLASS,
    FPGA,
    IMMEDIATE_CLASS,
    KEYS,
    RACKS,
    RUNTIME_CLASS,
    TEAMS,
    TIERS,
    ZONES,
    Object,
)

#: What a pod that asks for a node is about: one to three of these, so that each rule decides often, and all are met
#: together as well.
TOPICS: Final = (
    "room",
    "devices",
    "init",
    "level",
    "network",
    "tolerations",
    "selector",
    "node-affinity",
    *("affinity", "affinity", "anti-affinity", "spread", "spread", "spread"),
    "volumes",
    "gates",
)
TAINTS: Final = (
    {"key": "dedicated", "value": "a", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "b", "effect": "NoExecute"},
    {"key": "spot", "effect": "PreferNoSchedule"},
    {"key": "level", "value": "5", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
)


@dataclass
class World:
    """`asking` are the cases: pods without a node. `statuses` are to be written over those of pods that run, `ending`
    are to be deleted with a long grace."""

    nodes: list[Object] = field(default_factory=list)
    namespaces: list[Object] = field(default_factory=list)
    volumes: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    attaching: list[Object] = field(default_factory=list)
    running: list[Object] = field(default_factory=list)
    statuses: dict[tuple[str, str], Object] = field(default_factory=dict)
    ending: list[tuple[str, str]] = field(default_factory=list)
    asking: list[Object] = field(default_factory=list)


def generate(seed: int, cases: int) -> World:
    return _Maker(random.Random(seed), f"w{seed}").world(cases)


class _Maker:
    def __init__(self, rng: random.Random, name: str) -> None:
        self._rng = rng
        self._name = name
        self._gpus: dict[str, list[int]] = {}
        self._ports: dict[str, set[int]] = {}
        self._names: list[str] = []
        self._spaces = [f"{name}-{n}" for n in range(3)]
        self._wishes = Wishes(rng, self._names, self._spaces)
        self._claims = [*(f"bound-{n}" for n in range(6)), "first-use", "first-use-selected", "immediate", "missing"]

    def _odds(self, of: float) -> bool:
        return self._rng.random() < of

    def world(self, cases: int) -> World:
        rng = self._rng
        made = World()
        for space in self._spaces:
            labels = {"team": rng.choice(TEAMS)} if self._odds(0.8) else {}
            made.namespaces.append(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space, "labels": labels}}
            )
        made.nodes = [self._node(f"{self._name}-n{n}") for n in range(rng.randint(5, 12))]
        for space in self._spaces:
            self._storage(space, made)
        for node in made.nodes:
            if self._odds(0.5):
                made.attaching.append(csi_node(node["metadata"]["name"], rng.choice([1, 2, 3])))
        for n in range(rng.choice([0, 8, 15, 25, 35])):
            pod = self._pod(f"run-{n}", asks=False)
            node = rng.choice(made.nodes)
            self._bind(pod, node)
            place = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            made.running.append(pod)
            if self._odds(0.08):
                made.statuses[place] = {"phase": rng.choice(["Succeeded", "Failed"])}
            elif self._odds(0.2):
                made.statuses[place] = self._resized(pod)
            elif self._odds(0.2):
                made.ending.append(place)
        made.asking = [self._pod(f"ask-{n}", asks=True) for n in range(cases)]
        return made

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Object:
        rng = self._rng
        labels = {"kubernetes.io/hostname": name}
        if self._odds(0.9):
            labels["topology.kubernetes.io/zone"] = rng.choice(ZONES)
        if self._odds(0.8):
            labels["rack"] = rng.choice(RACKS)
        if self._odds(0.6):
            labels["disk"] = rng.choice(["ssd", "hdd", ""])
        if self._odds(0.7):
            labels["gen"] = rng.choice(["1", "3", "7", "12", "x9", "007"])
        amounts = {
            "cpu": rng.choice(["2", "4", "7500m", "16"]),
            "memory": rng.choice(["2Gi", "4Gi", "6000Mi", "16Gi"]),
            "pods": rng.choice(["4", "8", "20", "110"]),
            "ephemeral-storage": rng.choice(["1Gi", "20Gi"]),
        }
        if self._odds(0.3):
            amounts["hugepages-2Mi"] = rng.choice(["64Mi", "1Gi"])
        if self._odds(0.4):
            amounts[FPGA] = rng.choice(["1", "2"])
        if self._odds(0.5):
            gpus = rng.choice([1, 2, 4, 8])
            amounts["nvidia.com/gpu"] = str(gpus)
            labels["nvidia.com/gpu.product"], labels["nvidia.com/gpu.memory"] = "A100", "81920"
            self._gpus[name] = list(range(gpus))
        self._names.append(name)
        spec: Object = {}
        if self._odds(0.25):
            spec["taints"] = rng.sample(TAINTS, rng.randint(1, 2))
        if self._odds(0.12):
            spec["unschedulable"] = True
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }

    # -- volumes ----------------------------------------------------------------------------------------------------

    def _storage(self, space: str, made: World) -> None:
        """Claims of a namespace, six of them bound to volumes of their own."""
        rng = self._rng
        for name in self._claims[:6]:
            volume = f"{space}-{name}"
            labels = {"topology.kubernetes.io/zone": rng.choice(["z1", "z2", "z1__z3"])} if self._odds(0.3) else {}
            spec: Object = {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "",
                "claimRef": {"namespace": space, "name": name},
            }
            if self._odds(0.7):
                spec["csi"] = {"driver": DRIVER, "volumeHandle": f"h-{volume}"}
            else:
                spec["hostPath"] = {"path": "/data"}
            if self._odds(0.4):
                spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [self._node_term_of_volume()]}}
            made.volumes.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": volume, "labels": labels},
                    "spec": spec,
                }
            )
            mode = "ReadWriteOncePod" if self._odds(0.25) else "ReadWriteOnce"
            made.claims.append(claim(space, name, mode, "", volume, {"pv.kubernetes.io/bind-completed": "yes"}))
        made.claims.append(claim(space, "first-use", "ReadWriteOnce", FIRST_USE_CLASS))
        selected = {"volume.kubernetes.io/selected-node": rng.choice(self._names)}
        made.claims.append(claim(space, "first-use-selected", "ReadWriteOnce", FIRST_USE_CLASS, "", selected))
        made.claims.append(claim(space, "immediate", "ReadWriteOnce", IMMEDIATE_CLASS))

    def _node_term_of_volume(self) -> Object:
        rng = self._rng
        key, values = rng.choice([(KEYS[0], ZONES), ("rack", RACKS)])
        chosen = rng.sample(values, rng.randint(1, 2))
        return {"matchExpressions": [{"key": key, "operator": "In", "values": chosen}]}

    # -- pods -------------------------------------------------------------------------------------------------------

    def _pod(self, name: str, *, asks: bool) -> Object:
        rng = self._rng
        about = set(rng.sample(TOPICS, rng.choice([1, 1, 2, 3]))) if asks else set()

        def odds(topic: str, rarely: float) -> bool:
            return topic in about or self._odds(rarely if not asks else rarely / 5)

        labels = {}
        if self._odds(0.85):
            labels["app"] = rng.choice((*APPS, FIRST) if asks else APPS)
        if self._odds(0.5):
            labels["tier"] = rng.choice(TIERS)
        spec: Object = {
            "containers": [
                self._container(f"c{n}", room="room" in about, devices=odds("devices", 0.3))
                for n in range(rng.choice([1, 1, 1, 2]))
            ],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 600,
        }
        if odds("init", 0.2):
            spec["initContainers"] = [self._init(f"i{n}") for n in range(rng.randint(1, 3))]
        if odds("room", 0.1) and self._odds(0.5):
            spec["runtimeClassName"] = RUNTIME_CLASS
        if odds("level", 0.1):
            spec["resources"] = {
                rng.choice(["requests", "limits"]): {
                    "cpu": rng.choice(["3", "6"]),
                    "memory": rng.choice(["1Gi", "5Gi"]),
                }
            }
        if odds("network", 0.05) and self._odds(0.4):
            spec["hostNetwork"] = True
        if odds("network", 0.0):
            spec["containers"][0]["ports"] = [self._port()]
        if odds("tolerations", 0.3) or (asks and self._odds(0.3)):
            spec["tolerations"] = [self._wishes.toleration() for _ in range(rng.randint(1, 2))]
        affinity: Object = {}
        if odds("node-affinity", 0.0):
            affinity["nodeAffinity"] = self._wishes.node_affinity()
        if odds("affinity", 0.0):
            affinity["podAffinity"] = self._wishes.pod_affinity()
            if self._odds(0.3):
                # The first of a group: near to its likes, of which there are none yet.
                labels["app"] = FIRST
                terms = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                for term in terms:
                    term["labelSelector"] = {"matchLabels": {"app": FIRST}}
                    for key in ("matchLabelKeys", "mismatchLabelKeys"):
                        term.pop(key, None)
        if odds("anti-affinity", 0.2):
            affinity["podAntiAffinity"] = self._wishes.pod_affinity()
        if affinity:
            spec["affinity"] = affinity
        space = rng.choice(self._spaces)
        if odds("volumes", 0.25):
            names = rng.sample(self._claims, rng.choice([1, 1, 2]))
            if not asks:
                names = [name for name in names if name.startswith("bound")]
            spec["volumes"] = [
                {"name": f"v{n}", "persistentVolumeClaim": {"claimName": claim}} for n, claim in enumerate(names)
            ]
        if "devices" in about and self._odds(0.6):
            spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = rng.choice(["1", "2", "4"])
        if asks:
            if odds("selector", 0.0):
                key, values = rng.choice([("disk", ("ssd", "hdd", "")), (KEYS[0], ZONES), ("rack", RACKS)])
                spec["nodeSelector"] = {key: rng.choice(values)}
            if odds("spread", 0.0):
                keys = rng.sample(KEYS, rng.choice([1, 1, 2]))
                spec["topologySpreadConstraints"] = [self._wishes.spread(key) for key in keys]
            if "gates" in about and self._odds(0.5):
                spec["schedulingGates"] = [{"name": "example.com/wait"}]
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{self._name}-{name}",
                "namespace": space,
                "labels": labels,
                "annotations": {},
            },
            "spec": spec,
        }

    def _bind(self, pod: Object, node: Object) -> None:
        """To a node, as one of ours: whole GPUs are given by index, so that the engine knows which."""
        spec, name = pod["spec"], node["metadata"]["name"]
        spec["nodeName"], spec["schedulerName"] = name, "drystone"
        # No kubelet runs two pods on one port, and the scheduler's own books are wrong after one of them has ended.
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            used = self._ports.setdefault(name, set())
            if any(port["containerPort"] in used for port in container.get("ports", ())):
                del container["ports"]
            used.update(port["containerPort"] for port in container.get("ports", ()))
        free = self._gpus.get(name, [])
        if free and self._odds(0.5):
            count = self._rng.randint(1, len(free))
            taken = sorted(self._rng.sample(free, count))
            self._gpus[name] = [index for index in free if index not in taken]
            limits = spec["containers"][0]["resources"].setdefault("limits", {})
            limits["nvidia.com/gpu"] = str(count)
            pod["metadata"]["annotations"]["drystone.dev/gpus"] = ",".join(map(str, taken))

    def _container(self, name: str, *, room: bool = False, devices: bool = False) -> Object:
        rng = self._rng
        requests = {}
        if self._odds(0.8):
            requests["cpu"] = rng.choice(["500m", "1", "2500m", "4"] if room else ["0", "100m", "500m"])
        if self._odds(0.7):
            requests["memory"] = rng.choice(["512Mi", "1Gi", "3Gi", "5000Mi"] if room else ["64Mi", "512Mi"])
        if room and self._odds(0.3):
            requests["ephemeral-storage"] = rng.choice(["100Mi", "900Mi", "5Gi"])
        limits: dict[str, str] = {}
        if devices:
            match rng.randrange(3):
                case 0:
                    limits[FPGA] = rng.choice(["1", "2"])
                case 1:
                    limits["hugepages-2Mi"] = rng.choice(["32Mi", "128Mi"])
                    requests.setdefault("cpu", "100m")
                case _:
                    requests["ephemeral-storage"] = rng.choice(["300Mi", "900Mi"])
        if self._odds(0.1):
            limits["cpu"] = requests.pop("cpu", "1")
        made: Object = {
            "name": name,
            "image": "train:1",
            "resources": {"requests": requests, "limits": limits},
        }
        if self._odds(0.1):
            made["ports"] = [self._port()]
        return made

    def _port(self) -> Object:
        rng = self._rng
        port: Object = {"containerPort": rng.choice([80, 443, 8080]), "protocol": rng.choice(["TCP", "UDP"])}
        port["hostPort"] = port["containerPort"]
        if self._odds(0.5):
            port["hostIP"] = rng.choice(["10.0.0.1", "10.0.0.2", "0.0.0.0"])
        return port

    def _init(self, name: str) -> Object:
        made = self._container(name)
        if self._odds(0.5):
            made["restartPolicy"] = "Always"
        if self._odds(0.4):
            made["resources"]["requests"]["cpu"] = self._rng.choice(["1", "3"])
            made["resources"]["limits"].pop("cpu", None)
        return made

    def _resized(self, pod: Object) -> Object:
        rng = self._rng
        said: Object = {"phase": "Running", "containerStatuses": []}
        for container in pod["spec"]["containers"]:
            said["containerStatuses"].append(
                {
                    "name": container["name"],
                    "image": "train:1",
                    "imageID": "",
                    "ready": True,
                    "restartCount": 0,
                    "allocatedResources": {
                        "cpu": rng.choice(["50m", "1500m"]),
                        "memory": rng.choice(["32Mi", "700Mi"]),
                    },
                    "resources": {"requests": {"cpu": rng.choice(["50m", "2"])}},
                }
            )
        if self._odds(0.5):
            reason = rng.choice(["Infeasible", "Deferred"])
            said["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
        return said
