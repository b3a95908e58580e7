"""The command line's entry: what there is, in the order in which a newcomer needs it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CommandError
from cli.out import fail
from cli.simulate import simulate_app

app = typer.Typer(
    help="Drystone fits AI-training jobs onto GPU clusters on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
stack_app = typer.Typer(help="The real parts (API server, Kafka, Redis, Prometheus) on this machine.")
bench_app = typer.Typer(help="Measurements; each prints its figures, as JSON with --json.")
app.add_typer(stack_app, name="stack")
app.add_typer(bench_app, name="bench")
app.add_typer(simulate_app, name="simulate")

SERVICES = ("watcher", "metrics-collector", "placement", "preemptor", "binder")

Count = Annotated[int, typer.Option(min=1)]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="Kubeconfig; else $KUBECONFIG, else ~/.kube/config.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace; else the kubeconfig's.")]
KeepLogs = Annotated[Path | None, typer.Option("--keep", help="Where the logs of parts and services stay.")]
StackDir = Annotated[Path, typer.Option("--dir", help="Where the stack keeps its state.")]
DEFAULT_STACK = Path("var/stack")


@app.command()
def run(
    seconds: Annotated[float, typer.Option(help="About how long the replay takes.", min=1)] = 45.0,
    tasks: Annotated[int, typer.Option(help="How many tasks of the slice; 0 means all.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Every service in one process, on a simulated cluster, fed with real tasks. Needs no servers."""
    from cli.embedded import replay

    raise typer.Exit(replay(seconds=seconds, tasks=tasks, as_json=as_json))


@app.command()
def service(name: Annotated[str, typer.Argument(help=" | ".join(SERVICES))]) -> None:
    """One real service, configured by DRYSTONE_* variables."""
    if name not in SERVICES:
        raise CommandError(f"no service {name!r}; there are {', '.join(SERVICES)}")
    runpy.run_module(f"services.{name.replace('-', '_')}", run_name="__main__", alter_sys=True)


@app.command()
def topics(
    bootstrap: Annotated[str, typer.Option(envvar="DRYSTONE_KAFKA_BOOTSTRAP", help="Kafka bootstrap servers.")],
    create: Annotated[bool, typer.Option("--create", help="Create what is missing.")] = False,
    replicas: Annotated[int, typer.Option(help="Replication factor of created topics.", min=1)] = 1,
    allow: Annotated[str | None, typer.Option(help="Add access rules for the accounts PREFIX + service.")] = None,
) -> None:
    """Check Drystone's topics, or create them; drift (partitions, compaction, retention) is an error."""
    from cli.topics import check

    raise typer.Exit(check(bootstrap, create=create, replicas=replicas, allow_prefix=allow))


@app.command()
def submit(
    file: Annotated[Path, typer.Argument(help="A job in YAML or JSON; - for standard input.")],
    kafka: Annotated[bool, typer.Option("--kafka", help="Publish the event instead of making the object.")] = False,
    bootstrap: Annotated[str, typer.Option(envvar="DRYSTONE_KAFKA_BOOTSTRAP")] = "127.0.0.1:9092",
    topic: Annotated[str, typer.Option(help="Tenant's job topic, with --kafka.")] = "drystone.jobs",
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Submit a job, through the Kubernetes API as yourself, or with --kafka as an event."""
    from cli.jobs import submit as run_submit

    to = (bootstrap, topic) if kafka else None
    raise typer.Exit(run_submit(file, kafka=to, namespace=namespace, kubeconfig=kubeconfig, as_json=as_json))


@app.command()
def cancel(
    job: Annotated[
        str, typer.Argument(help="NAME or NAMESPACE/NAME of the job object, or the id it was submitted with.")
    ],
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Cancel a job: its object is deleted, its pods follow."""
    from cli.jobs import cancel as run_cancel

    raise typer.Exit(run_cancel(job, namespace=namespace, kubeconfig=kubeconfig, as_json=as_json))


@app.command()
def status(
    job: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME; all jobs without it.")] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Only this namespace.")] = "",
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """State of one job or of all: phase, tasks bound, reason."""
    from cli.jobs import status as run_status

    raise typer.Exit(run_status(job, namespace=namespace, kubeconfig=kubeconfig, as_json=as_json))


@app.command()
def why(
    job: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of a job, gang or pod.")],
    namespace: Namespace = "",
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Why a job waits: nodes counted per reason, and what would help."""
    from cli.jobs import why as run_why

    raise typer.Exit(run_why(job, namespace=namespace, kubeconfig=kubeconfig, as_json=as_json))


@app.command()
def queue(
    path: Annotated[str, typer.Argument(help="Path or name of a queue; all queues without it.")] = "",
    resource: Annotated[str, typer.Option(help="gpu, cpu, memory, or a model of GPUs.")] = "gpu",
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """The tree of queues: limits, shares, what is used and was used of late, and what waits."""
    from cli.queue import queue as run_queue

    raise typer.Exit(run_queue(path, resource=resource, kubeconfig=kubeconfig, as_json=as_json))


@app.command()
def check(
    kubeconfig: Kubeconfig = None,
    redis: Annotated[str, typer.Option(envvar="DRYSTONE_REDIS_URL")] = "redis://127.0.0.1:6379/0",
    as_json: Json = False,
) -> None:
    """Check the laws on a live system, API server against ledger. Exit 1 and a list if one is broken."""
    from cli.check import check as run_check

    raise typer.Exit(run_check(kubeconfig, redis, as_json))


@stack_app.command("up")
def stack_up(
    directory: StackDir = DEFAULT_STACK,
    services: Annotated[bool, typer.Option(help="Start the five services too.")] = False,
    secured: Annotated[bool, typer.Option("--secured", help="Accounts and TLS at Kafka and Redis.")] = False,
    nodes: Annotated[int, typer.Option(help="Make so many nodes of 8 GPUs, with played kubelets.", min=0)] = 0,
) -> None:
    """Start the real parts and print their addresses; they go on until `stack down`."""
    from cli.stack import up

    raise typer.Exit(up(directory, services=services, nodes=nodes, secured=secured))


@stack_app.command("down")
def stack_down(directory: StackDir = DEFAULT_STACK) -> None:
    """End what `stack up` started, by pid."""
    from cli.stack import down

    raise typer.Exit(down(directory))


@stack_app.command("status")
def stack_status(directory: StackDir = DEFAULT_STACK) -> None:
    """What runs, and where."""
    from cli.stack import status as run_stack_status

    raise typer.Exit(run_stack_status(directory))


@bench_app.command("pipeline")
def bench_pipeline(
    nodes: Count = 1000,
    pods: Count = 2000,
    against: Annotated[str, typer.Option(help="kube-scheduler, or empty for ours alone.")] = "",
    runs: Count = 3,
    as_json: Json = False,
) -> None:
    """One-GPU pods through five processes on real parts, interleaved with kube-scheduler."""
    from cli.bench import pipeline

    raise typer.Exit(pipeline(nodes, pods, against, runs, as_json))


@bench_app.command("engine")
def bench_engine(runs: Count = 3, as_json: Json = False) -> None:
    """The engine alone: the openb default list, single pods and gangs on up to 20,000 nodes, memory."""
    from cli.bench import engine

    raise typer.Exit(engine(runs, as_json))


@bench_app.command("jobs")
def bench_jobs(trials: Count = 300, nodes: Count = 100, as_json: Json = False) -> None:
    """A 10-task job event on Kafka, from the broker's acknowledgement to the tenth task bound."""
    from cli.bench import jobs

    raise typer.Exit(jobs(trials, nodes, as_json))


@bench_app.command("gang")
def bench_gang(size: Count = 512, nodes: Count = 500, runs: Count = 3, as_json: Json = False) -> None:
    """A gang of one-GPU pods, from the first create to all bound; and a hopeless job, to its Never."""
    from cli.bench import gang

    raise typer.Exit(gang(size, nodes, runs, as_json))


@bench_app.command("hopeless")
def bench_hopeless(
    nodes: Count = 60,
    hopeless: Annotated[int, typer.Option(help="Pods of another tenant that fit nowhere, no two alike.", min=0)] = 5000,
    pods: Count = 300,
    rate: Annotated[float, typer.Option(help="Of the measured pods, per second.", min=0.1)] = 40.0,
    runs: Count = 5,
    settle: Annotated[
        float, typer.Option(help="Seconds from the last hopeless pod to the first measured one.", min=0)
    ] = 2.0,
    as_json: Json = False,
) -> None:
    """One tenant's hopeless pods beside another's that fit: what the latter wait for. Exit 1 over a limit."""
    from cli.bench import hopeless as measure

    raise typer.Exit(measure(nodes, hopeless, pods, rate, runs, settle, as_json))


@bench_app.command("reclaim")
def bench_reclaim(
    nodes: Count = 500,
    size: Annotated[int, typer.Option(help="Tasks of the gang that reclaims.", min=1)] = 500,
    singles: Count = 10,
    gangs: Count = 3,
    moves: Annotated[int, typer.Option(help="Pods to move together for a gang of whole nodes; 0: none.", min=0)] = 400,
    keep: KeepLogs = None,
    as_json: Json = False,
) -> None:
    """A queue has its share back from a full cluster: from the create to all bound. Exit 1 over a limit."""
    from cli.bench import reclaim

    raise typer.Exit(reclaim(nodes, size, singles, gangs, moves, keep, as_json))


@bench_app.command("failover")
def bench_failover(
    only: Annotated[str, typer.Option(help="Faults by name, joined by ' + '; all without it.")] = "",
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    rate: Annotated[float, typer.Option(help="Pods a second.", min=0.1)] = 10.0,
    keep: KeepLogs = None,
    as_json: Json = False,
) -> None:
    """Each part fails in turn under a steady stream of pods: how long binding stands still. Exit 1 over a limit."""
    from cli.bench import failover

    raise typer.Exit(failover(only, repeats, rate, keep, as_json))


@bench_app.command("rebuild")
def bench_rebuild(
    pods: Annotated[int, typer.Option(min=1)] = 2000,
    nodes: Annotated[int, typer.Option(min=1)] = 300,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    keep: KeepLogs = None,
    as_json: Json = False,
) -> None:
    """Redis is emptied in the middle of a burst: until the ledger is whole and binding goes on. Exit 1 over 15 s."""
    from cli.bench import rebuild

    raise typer.Exit(rebuild(pods, nodes, repeats, keep, as_json))


@bench_app.command("rolling")
def bench_rolling(
    rate: Annotated[float, typer.Option(help="Single pods a second.", min=0.1)] = 10.0,
    jobs: Annotated[float, typer.Option(help="Job events on Kafka a second.", min=0.1)] = 1.0,
    before: Annotated[str, typer.Option(help="Revision that the services run from at first: an upgrade.")] = "",
    keep: KeepLogs = None,
    as_json: Json = False,
) -> None:
    """Every replica of every service restarted under load: nothing lost, how much longer pods wait."""
    from cli.bench import rolling

    raise typer.Exit(rolling(rate, jobs, before, keep, as_json))


@bench_app.command("soak")
def bench_soak(
    minutes: Annotated[float, typer.Option(min=0.1)] = 20.0,
    rate: Annotated[float, typer.Option(help="Pods a second.", min=0.1)] = 200.0,
    source: Annotated[str, typer.Option(help="pods: single pods; kafka: jobs of ten tasks.")] = "pods",
    keep: KeepLogs = None,
    as_json: Json = False,
) -> None:
    """Pods come and go on 1,000 nodes: memory of each service, sizes of the ledger's keys, the rate that held."""
    from cli.bench import soak

    raise typer.Exit(soak(minutes, rate, source, keep, as_json))


@bench_app.command("fuzz")
def bench_fuzz(
    events: Count = 10_000,
    seed: int = 1,
    rate: Annotated[float, typer.Option(help="Events a second.", min=0.1)] = 100.0,
    as_json: Json = False,
) -> None:
    """Hostile job events on real parts: each is answered once, nothing dies, nothing stalls. Exit 1 if not so."""
    from cli.bench import fuzz

    raise typer.Exit(fuzz(events, seed, rate, as_json))


Candidates = Annotated[list[int], typer.Option(help="DRYSTONE_PLACEMENT_CANDIDATES; several to compare.", min=1)]
Fills = Annotated[list[float], typer.Option("--fill", help="Shares of GPUs in use.", min=0, max=1)]
Replicas = Annotated[list[int], typer.Option(help="Of placement, in bursts.", min=1)]


@bench_app.command("conflicts")
def bench_conflicts(
    nodes: Count = 300,
    pods: Annotated[int, typer.Option(help="Of a burst.", min=1)] = 2000,
    seconds: Annotated[float, typer.Option(help="Of churn, at each share.", min=1)] = 15.0,
    rate: Annotated[float, typer.Option(help="Pods that end and come, a second.", min=0.1)] = 50.0,
    candidates: Candidates = [1],  # noqa: B006
    fills: Fills = [0.5, 0.8, 0.95],  # noqa: B006
    replicas: Replicas = [1, 2, 4],  # noqa: B006
    runs: Count = 2,
    as_json: Json = False,
) -> None:
    """Plans refused because another replica was first, under churn, and what replicas bring in a burst."""
    from cli.bench import conflicts

    raise typer.Exit(conflicts(nodes, pods, seconds, rate, candidates, fills, replicas, runs, as_json))


@app.command()
def chaos(
    rounds: Count = 5,
    seed: int = 1,
    only: Annotated[str, typer.Option(help="Faults of every round by name, joined by ' + '.")] = "",
    keep: Annotated[Path | None, typer.Option(help="Where the logs of parts and services stay.")] = None,
    as_json: Json = False,
) -> None:
    """Break parts and services under load, on real parts, and hold the system to its laws. Exit 1 if one is broken."""
    from cli.chaos import chaos as run_chaos

    raise typer.Exit(run_chaos(rounds, seed, only, keep, as_json))


def main() -> None:
    try:
        app()
    except CommandError as error:
        fail(str(error), as_json="--json" in sys.argv)
        raise SystemExit(1) from None
