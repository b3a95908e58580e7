"""kwok, which plays the kubelets of nodes with the annotation `kwok.x-k8s.io/node: fake`.

Such nodes become ready and stay so, pods bound to them run at once and disappear when deleted. A pod annotated with
`drystone.dev/fake-run: 30s` succeeds after that time. Nodes without the annotation are left alone.
"""

from pathlib import Path

from tools.stack import probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools

ANNOTATION = "kwok.x-k8s.io/node=fake"
_STAGES = Path(__file__).with_name("kwok-stages.yaml")


def _command(info: StackInfo, tools: Tools) -> list[str]:
    return [
        str(tools["kwok"]),
        f"--kubeconfig={info.kubeconfig_for('kwok')}",
        f"--config={_STAGES}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={ANNOTATION}",
        f"--server-address={info.address('kwok')}",
        # Leases instead of node updates as heartbeats, as real kubelets do: one small write each quarter of this.
        "--node-lease-duration-seconds=40",
        "--v=WARN",
    ]


KWOK = Part(
    "kwok",
    ("kwok",),
    _command,
    lambda info: probe.get(info.address("kwok"), "/healthz") == 200,
    after=("apiserver",),
)
