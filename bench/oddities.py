"""What a careful reader of job events has to get over: odd values, numbers that are none, what belongs to others, and
what a pod spec may reach for."""

from __future__ import annotations

from typing import Any, Final

from libs.domain import keys

ODD: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 10**30, 1.5, -0.0, 1e308, "", " ", "a", "A", "../default", "\x00", "ü", "\u202e",
    "x" * 300, "a" * 70_000, [], {}, [[]], [None], {"id": "x"}, {"": ""}, ["a"] * 300, "1", "NaN", "kube-system",
)  # fmt: skip
UNKNOWN: Final = (
    "colour",
    "",
    "id",
    "__proto__",
    "roles",
    "spec",
    "Namespace",
    "x" * 200,
    "\x00",
    "metadata",
    "status",
)
NUMBERS: Final = (
    "NaN", "Infinity", "-Infinity", "-1", "0", "-0", "1.5", "1e400", "1e5", "99999999999999999999999", "true", '"3"',
    "[]", "null", "0x10", "01", "1_000", "2147483648", "9223372036854775808",
)  # fmt: skip
TYPES: Final = ("dev.drystone.job.submit.v2", "", "x" * 300, "io.other.thing", "dev.drystone.tasks.v1", "\x00")
OF_OTHERS: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("namespace", ("kube-system", "drystone-system", "team-b", "../default", "DEFAULT", "default\n", "a" * 64, "")),
    ("queue", ("team-b", "../", "/", "a//b", "x" * 254, "UPPER", "team-b/research\x00")),
    ("priority", ("system-node-critical", "system-cluster-critical", "no-such-class", "HIGH", "", "-", "high\n")),
    ("tenant", ("team-b", "default", None)),
)  # fmt: skip


def pod_spec() -> dict[str, Any]:
    """One that a tenant may submit, of one small pod."""
    amounts = {"cpu": "1", "memory": "1Gi", keys.GPU_RESOURCE: "1"}
    return {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "main",
                "image": "train:1",
                "resources": {"requests": dict(amounts), "limits": dict(amounts)},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }


def hostile_fields(spec: dict[str, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """(where, field, what it is set to) of a pod spec: what reaches for the host, for others, or for the reader."""
    main = spec["containers"][0]
    security, limits = main["securityContext"], main["resources"]["limits"]
    requests = main["resources"]["requests"]
    return [
        (spec, "hostPID", True),
        (spec, "hostNetwork", True),
        (spec, "nodeName", "node-00000"),
        (spec, "schedulerName", "default-scheduler"),
        (spec, "priorityClassName", "system-node-critical"),
        (spec, "serviceAccountName", "drystone-binder"),
        (spec, "volumes", [{"name": "v", "hostPath": {"path": "/"}}]),
        (spec, "volumes", [{"name": "v", "persistentVolumeClaim": {"claimName": "../other"}}]),
        (spec, "volumes", [{"name": f"v{n}", "emptyDir": {}} for n in range(500)]),
        (spec, "initContainers", [{**main, "name": "first", "restartPolicy": "Always"}]),
        (spec, "initContainers", [{"name": "main", "image": "i"}]),
        (spec, "ephemeralContainers", [{"name": "e", "image": "i"}]),
        (spec, "containers", []),
        (spec, "containers", [main, main]),
        (spec, "containers", [{**main, "name": f"c{n}"} for n in range(200)]),
        (spec, "nodeSelector", {"a": 1}),
        (spec, "nodeSelector", {"": "x", "b" * 300: "y"}),
        (spec, "tolerations", [{"operator": "Exists", "tolerationSeconds": -(10**18)}]),
        (spec, "tolerations", [{"key": "a", "operator": "Sometimes"}] * 50),
        (spec, "affinity", {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}),
        (spec, "affinity", {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        (spec, "topologySpreadConstraints", [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Maybe"}]),
        (spec, "terminationGracePeriodSeconds", -1),
        (spec, "terminationGracePeriodSeconds", 10**12),
        (spec, "activeDeadlineSeconds", 0),
        (spec, "restartPolicy", "Always"),
        (spec, "overhead", {"cpu": "-1"}),
        (spec, "resourceClaims", [{"name": "nic", "resourceClaimName": "nic"}]),
        (spec, "schedulingGates", [{"name": "mine"}]),
        (spec, "dnsPolicy", "Perhaps"),
        (spec, "unknownField", {"deep": [1, 2, {"er": None}]}),
        (security, "privileged", True),
        (security, "capabilities", {"add": ["SYS_ADMIN"]}),
        (security, "procMount", "Unmasked"),
        (main, "image", ""),
        (main, "name", "Not A Name"),
        (main, "env", [{"name": f"E{n}", "value": "x" * 1_000} for n in range(200)]),
        (main, "env", [{"name": "", "valueFrom": {"secretKeyRef": {}}}]),
        (main, "ports", [{"containerPort": 70_000, "hostPort": -1}]),
        (main, "livenessProbe", {"exec": {}, "httpGet": {}, "periodSeconds": -5}),
        (limits, "cpu", "1e400"),
        (limits, "memory", "-1Gi"),
        (limits, keys.GPU_RESOURCE, "0.5"),
        (limits, keys.GPU_RESOURCE, 10**30),
        (limits, "cpu", "NaN"),
        (limits, "memory", "1Zi"),
        (requests, "cpu", "2"),
        (requests, "example.com/other", "3"),
        (requests, "hugepages-2Mi", "7"),
        (requests, "cpu", {"a": 1}),
    ]


def extreme_fields(spec: dict[str, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """(where, field, what it is set to): all of it readable, as large or as many as nothing real is."""
    main, required = spec["containers"][0], "requiredDuringSchedulingIgnoredDuringExecution"
    resources, digits = main["resources"], "9" * 5_000

    def nodes(*expressions: dict[str, Any]) -> dict[str, Any]:
        return {"nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}}}

    def number(text: str) -> dict[str, Any]:
        return nodes({"key": "kubernetes.io/hostname", "operator": "Gt", "values": [text]})

    amounts = ("9E", "9223372036854775807", "9223372036854776", "8388608Ti", "1e30", "1e-30", digits, "0" * 5_000 + "1")
    rate = [
        {"maxSkew": 2**31 - 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2**31 - 1}
    ]
    return [
        *((resources["limits"], name, amount) for name in ("cpu", "memory", keys.GPU_RESOURCE) for amount in amounts),
        (resources, "requests", dict.fromkeys(("cpu", "memory", "ephemeral-storage", "example.com/other"), "9E")),
        (spec, "overhead", dict.fromkeys(("cpu", "memory"), "9E")),
        (spec, "containers", [{**main, "name": f"c{n}", "resources": {"limits": {"cpu": "8E"}}} for n in range(50)]),
        (spec, "affinity", number(digits)),
        (spec, "affinity", number("-" + digits)),
        (spec, "affinity", number("0" * 5_000 + "7")),
        (spec, "affinity", nodes(*({"key": f"k{n}", "operator": "Exists"} for n in range(2_000)))),
        (spec, "affinity", nodes({"key": "k", "operator": "In", "values": [str(n) for n in range(20_000)]})),
        (spec, "affinity", {"podAntiAffinity": {required: [{"topologyKey": f"k{n}"} for n in range(1_000)]}}),
        (spec, "topologySpreadConstraints", rate),
        (spec, "topologySpreadConstraints", [{**rate[0], "topologyKey": f"k{n}"} for n in range(500)]),
        (spec, "topologySpreadConstraints", [{**rate[0], "maxSkew": 10**300}]),
        (spec, "tolerations", [{"key": f"k{n}", "operator": "Exists"} for n in range(3_000)]),
        (spec, "tolerations", [{"operator": "Exists", "tolerationSeconds": 2**63 - 1}]),
        (spec, "nodeSelector", {f"k{n}": "v" for n in range(2_000)}),
        (spec, "terminationGracePeriodSeconds", 2**63 - 1),
        (main, "ports", [{"containerPort": 10**300}]),
        (main, "ports", [{"containerPort": 1 + n} for n in range(5_000)]),
        (main, "args", ["x" * 400_000]),
    ]


#: Of a pod's annotations, as far as submissions may have them.
EXTREME_ANNOTATIONS: Final[tuple[dict[str, str], ...]] = (
    {keys.GPU_FRACTION: "0." + "0" * 5_000 + "1"},
    {keys.GPU_FRACTION: "1e-999999999"},
    {keys.GPU_MEMORY: "9" * 5_000},
    {keys.GPU_MEMORY: "9Ei"},
    {keys.GPU_MODELS: ",".join(f"model-{n}" for n in range(10_000))},
    {keys.GPU_MODELS: "x" * 200_000},
    {keys.TOPOLOGY_REQUIRED: "k" * 100_000},
    {keys.GROUP_SIZE: "9" * 5_000, keys.GROUP_TOPOLOGY_REQUIRED: "rack"},
    {"gpu-fraction-num-devices": "9" * 5_000, "gpu-fraction": ".5"},
)


def refused_fields(spec: dict[str, Any]) -> list[tuple[dict[str, Any], str, Any]]:
    """(where, field, what it is set to): nobody is harmed, and no API server takes the pod."""
    main = spec["containers"][0]
    return [
        (main, "name", "Not A Name"),
        (main, "imagePullPolicy", "Perhaps"),
        (main, "resorces", {"limits": {"cpu": "1"}}),
        (main, "env", [{"name": "A", "valueFrom": {"secretKeyRef": {}}}]),
        (spec, "dnsPolicy", "Perhaps"),
        (spec, "restartPolicy", "Sometimes"),
        (spec, "activeDeadlineSeconds", 0),
        (spec, "serviceAccountName", "nobody-made-this"),
        (spec, "volumes", [{"name": "v", "configMap": {}}]),
    ]
