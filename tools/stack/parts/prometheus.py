"""Prometheus with a list of targets, and rules, that tests may write while it runs.

Targets: `prometheus/targets.json`, a file_sd list, read again when it changes. Rules: files in `prometheus/rules`,
read again on SIGHUP (`Stack.signal_part`).
"""

from tools.stack import probe
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools
from tools.stack.paths import write_private


def _prepare(info: StackInfo, _tools: Tools) -> None:
    folder = info.directory / "prometheus"
    (folder / "rules").mkdir(parents=True, exist_ok=True)
    config = f"""\
global:
  scrape_interval: {info.settings.scrape_interval}
  scrape_timeout: {info.settings.scrape_interval}
  evaluation_interval: {info.settings.scrape_interval}
rule_files:
- {folder / "rules"}/*.yaml
- {folder / "rules"}/*.yml
scrape_configs:
- job_name: stack
  file_sd_configs:
  - files: [{info.prometheus_targets}]
    refresh_interval: 1s
"""
    write_private(folder / "prometheus.yaml", config)
    if not info.prometheus_targets.exists():
        write_private(info.prometheus_targets, "[]\n")


def _command(info: StackInfo, tools: Tools) -> list[str]:
    folder = info.directory / "prometheus"
    return [
        str(tools["prometheus"]),
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={info.address('prometheus')}",
        "--log.level=warn",
    ]


PROMETHEUS = Part(
    "prometheus",
    ("prometheus",),
    _command,
    lambda info: probe.get(info.address("prometheus"), "/-/ready") == 200,
    _prepare,
)
