"""kube-scheduler as it is, for comparison and for pods that are not ours."""

from tools.stack import probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools
from tools.stack.paths import write_private


def _prepare(info: StackInfo, _tools: Tools) -> None:
    # Its default of 50 requests a second would be what a benchmark measures.
    config = f"""\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
clientConnection:
  kubeconfig: {info.kubeconfig_for("scheduler")}
  qps: 5000
  burst: 5000
"""
    write_private(info.directory / "scheduler" / "config.yaml", config)


def _command(info: StackInfo, tools: Tools) -> list[str]:
    host, port = info.address("scheduler").split(":")
    return [
        str(tools["kube-scheduler"]),
        f"--config={info.directory / 'scheduler' / 'config.yaml'}",
        f"--bind-address={host}",
        f"--secure-port={port}",
        f"--cert-dir={info.directory / 'scheduler'}",
        "--leader-elect=false",
        "--v=0",
    ]


SCHEDULER = Part(
    "scheduler",
    ("kube-scheduler",),
    _command,
    lambda info: probe.get(info.address("scheduler"), "/readyz", tls=True) == 200,
    _prepare,
    after=("apiserver",),
)
