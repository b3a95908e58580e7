"""kube-controller-manager with the controllers that matter here: garbage collection, namespaces, workloads.

The node controllers are off: nodes that nobody sends heartbeats for are what most tests want, and would be tainted and
emptied after a minute.
"""

from tools.stack import probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools

_CONTROLLERS = (
    "garbage-collector-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "resourcequota-controller",
    "job-controller",
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "disruption-controller",
    "resourceclaim-controller",
    "ttl-after-finished-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "clusterrole-aggregation-controller",
    "podgroup-protection-controller",
)


def _command(info: StackInfo, tools: Tools) -> list[str]:
    host, port = info.address("controller-manager").split(":")
    return [
        str(tools["kube-controller-manager"]),
        f"--kubeconfig={info.kubeconfig_for('controller-manager')}",
        f"--bind-address={host}",
        f"--secure-port={port}",
        f"--cert-dir={info.directory / 'controller-manager'}",
        "--leader-elect=false",
        f"--controllers={','.join(_CONTROLLERS)}",
        f"--service-account-private-key-file={info.directory / 'pki' / 'service-account.key'}",
        # Its default of 20 requests a second would take minutes to clear what a benchmark made.
        "--kube-api-qps=5000",
        "--kube-api-burst=5000",
        "--v=0",
    ]


CONTROLLER_MANAGER = Part(
    "controller-manager",
    ("kube-controller-manager",),
    _command,
    lambda info: probe.get(info.address("controller-manager"), "/healthz", tls=True) == 200,
    after=("apiserver",),
)
