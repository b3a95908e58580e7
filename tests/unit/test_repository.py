"""What the repository says about itself: its commands exist, its files agree with each other and with the code."""

import ast
import itertools
import json
import re
import shlex
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from cli.main import SERVICES, app
from libs.contracts import access, topics
from libs.domain import keys
from tools.catalog import EVENTS

ROOT = Path(__file__).resolve().parents[2]


@cache
def tracked() -> tuple[str, ...]:
    said = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if said.returncode:
        pytest.skip("no git checkout")
    return tuple(name for name in said.stdout.decode().split("\0") if name and (ROOT / name).is_file())


def text_of(name: str) -> str:
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


# --- docker-compose.yml ---------------------------------------------------------------------------------------------

#: The Compose specification's own schema (Apache-2.0), as docker-compose 1.29.2 ships it; a project's `name` is newer.
COMPOSE = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
COMPOSE["properties"]["name"] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"}


@cache
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load(text_of("docker-compose.yml")))


def needed_by(service: dict[str, Any]) -> dict[str, str]:
    said = service.get("depends_on", {})
    if isinstance(said, list):
        return dict.fromkeys(said, "service_started")
    return {name: how["condition"] for name, how in said.items()}


def test_the_compose_file_is_one() -> None:
    jsonschema.validate(compose(), COMPOSE, cls=jsonschema.Draft201909Validator)


def test_compose_services_depend_on_what_is_there_and_not_on_each_other() -> None:
    services = compose()["services"]
    for name, service in services.items():
        for other, condition in needed_by(service).items():
            assert other in services, f"{name} needs {other}"
            if condition == "service_healthy":
                assert "healthcheck" in services[other], f"{name} waits for {other}, which says nothing of its health"
    left = {name: set(needed_by(service)) for name, service in services.items()}
    while ready := {name for name, needs in left.items() if not needs}:
        left = {name: needs - ready for name, needs in left.items() if name not in ready}
    assert not left, f"in a circle: {sorted(left)}"


def test_compose_volumes_are_declared_and_mounted_files_exist() -> None:
    for name, service in compose()["services"].items():
        for volume in service.get("volumes", ()):
            source = re.sub(r"\$\{[^}]*\}", "~", volume).split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name} mounts {source}"
            elif not source.startswith(("/", "~")):
                assert source in compose()["volumes"], f"{name} mounts {source}"


@cache
def variables() -> frozenset[str]:
    """Of the environment, as settings read them."""
    return frozenset(
        f"DRYSTONE_{name.upper()}"
        for settings in (ROOT / "libs/host/settings.py", *(ROOT / "services").glob("*/settings.py"))
        for name in re.findall(r"^    ([a-z_]+):", settings.read_text(), re.MULTILINE)
    )


def test_documents_and_manifests_name_only_variables_that_are_read() -> None:
    seen = 0
    for name in tracked():
        if name.endswith((".md", ".yaml", ".yml")) or name in ("Dockerfile", "Makefile"):
            named = set(re.findall(r"\bDRYSTONE_[A-Z][A-Z0-9_]*[A-Z0-9]\b(?!_?\*)", text_of(name)))
            assert named <= variables(), f"{name}: {sorted(named - variables())}"
            seen += len(named)
    assert seen > 100


def test_compose_runs_every_service_with_settings_that_exist() -> None:
    services = compose()["services"]
    assert {s["command"][1] for s in services.values() if s.get("command", [""])[0] == "service"} == set(SERVICES)
    known = variables()
    config = yaml.safe_load(text_of("k8s/base/config.yaml"))["data"]
    for said in (config, *(s["environment"] for n, s in services.items() if n in SERVICES)):
        assert said.keys() <= known


def test_images_carry_the_version_of_the_project() -> None:
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    images = {s["image"] for s in compose()["services"].values() if s["image"].startswith("drystone")}
    for name in tracked():
        if name.startswith("k8s/") and name.endswith(".yaml"):
            images |= set(re.findall(r"image: (drystone\S*)", text_of(name)))
    assert images == {f"drystone:{version}"}


# --- Makefile, README -----------------------------------------------------------------------------------------------


def targets() -> dict[str, str]:
    return dict(re.findall(r"^([a-z-]+):(.*)$", text_of("Makefile"), re.MULTILINE))


def test_every_make_target_has_help_and_is_phony() -> None:
    phony = set(re.search(r"^\.PHONY: (.*)$", text_of("Makefile"), re.MULTILINE).group(1).split())
    assert {name for name, rest in targets().items() if "## " not in rest} == set()
    assert phony == set(targets())


def test_bare_make_prints_the_help() -> None:
    said = subprocess.run(["make", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(re.search(rf"^ +{name} ", said, re.MULTILINE) for name in targets())


def commands(group: Any, before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        path = f"{before} {name}".strip()
        found |= commands(command, path) if hasattr(command, "commands") else {path: command}
    return found


def shell_lines(name: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", text_of(name).replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.split("#")[0].strip()]


def test_commands_in_the_readme_and_the_documents_exist() -> None:
    known = commands(typer.main.get_command(app))  # type: ignore[arg-type]
    seen = 0
    for name in ("README.md", *(n for n in tracked() if n.startswith("docs/"))):
        for line in shell_lines(name):
            words = shlex.split(line)
            if words[0] == "make":
                assert words[1] in targets(), f"{name}: {line}"
                seen += 1
            elif words[0].endswith("drystone"):
                path = next((p for p in known if " ".join(words[1:]).startswith(p)), None)
                assert path is not None, f"{name}: {line}"
                options = {o for p in known[path].params for o in (*p.opts, *p.secondary_opts)}
                assert {w.partition("=")[0] for w in words if w.startswith("--")} <= options, f"{name}: {line}"
                files = [w for w in words if w.endswith((".yaml", ".json"))]
                assert all((ROOT / f).exists() for f in files), f"{name}: {line}"
                seen += 1
    assert seen >= 5


def test_every_number_that_a_command_takes_has_a_least_value() -> None:
    """So that none ends in a trace, or means what nobody would guess. Seeds and priorities may be any number."""
    numbers = {
        f"{path} {option.opts[0]}": option
        for path, command in commands(typer.main.get_command(app)).items()  # type: ignore[arg-type]
        for option in command.params
        if option.type_descriptor.annotation in (int, float, list[int], list[float])
    }
    assert len(numbers) > 50
    assert [n for n, o in numbers.items() if o.min is None and not n.endswith(("--seed", "--priority"))] == []


def test_documents_keep_to_the_width_of_the_code() -> None:
    """But for tables, whose rows are lines."""
    for name in (n for n in tracked() if n.endswith(".md")):
        for number, line in enumerate(text_of(name).splitlines(), 1):
            assert len(line) <= 120 or line.startswith("|"), f"{name}, line {number}: run `python -m tools.prose`"


def test_links_between_documents_lead_somewhere() -> None:
    for name in tracked():
        if name.endswith(".md"):
            for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text_of(name)):
                assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_documents_name_only_files_that_are_there() -> None:
    folders = "libs|services|cli|bench|tests|tools|k8s|docs|examples"
    for name in (n for n in tracked() if n.endswith(".md")):
        for path in re.findall(rf"`((?:{folders})/[\w./*-]+)`", text_of(name)):
            assert any(ROOT.glob(path.rstrip("/"))), f"{name}: {path}"


def test_ci_runs_the_readmes_test_command() -> None:
    assert "make test" in text_of(".ci/run")
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


# --- topics ---------------------------------------------------------------------------------------------------------


def test_the_topic_table_is_consistent() -> None:
    by_name = {t.name: t for t in topics.ALL}
    assert len(by_name) == len(topics.ALL)
    declared = {value.name for value in vars(topics).values() if isinstance(value, topics.Topic)}
    assert declared == by_name.keys()
    assert all(re.fullmatch(r"drystone\.[a-z-]+", name) for name in by_name)
    # The owner of a partition of the tasks reads the same partition number of the others.
    of_jobs = (topics.TASKS, topics.PLANS, topics.EVICTIONS, topics.OUTCOMES, topics.STATUS)
    assert {t.partitions for t in of_jobs} == {topics.JOB_PARTITIONS}
    assert {t.name for t in topics.ALL if t.compacted} == {"drystone.cluster", "drystone.gpus", "drystone.mix"}
    for topic in topics.ALL:
        assert topic.config(3)["min.insync.replicas"] == "2"
        assert topic.config(1)["min.insync.replicas"] == "1"


def rows_of(name: str, heading: str) -> list[list[str]]:
    """Cells of the first table under a heading of a document, without its head."""
    lines = text_of(name).split(f"## {heading}\n", 1)[1].splitlines()
    table = itertools.takewhile(
        lambda line: line.startswith("|"), itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table][2:]


def test_the_events_page_lists_every_topic_as_it_is() -> None:
    def services(which: str, topic: topics.Topic) -> str:
        return (
            ", ".join(name for name, may in access.SERVICES.items() if topic in getattr(may, which)) or "other systems"
        )

    listed = rows_of("docs/events.md", "All topics")
    assert listed == [
        [
            f"`{topic.name}`",
            str(topic.partitions),
            "the last of each key" if topic.compacted else f"{topic.retention_ms // (24 * topics.HOUR_MS)} days",
            *{event.key for event in EVENTS if event.topic is topic},
            services("writes", topic),
            services("reads", topic),
        ]
        for topic in topics.ALL
    ]


def test_the_architecture_page_says_what_each_service_reads_and_writes() -> None:
    listed = {row[0]: row[1:3] for row in rows_of("docs/architecture.md", "The flow")}
    assert listed.keys() == access.SERVICES.keys()
    for service, cells in listed.items():
        said = [{f"drystone.{name}" for name in re.findall(r"`(?:drystone)?\.([a-z-]+)`", cell)} for cell in cells]
        may = access.SERVICES[service]
        assert said == [{t.name for t in may.reads}, {t.name for t in may.writes}], service


def test_the_operations_page_says_what_the_access_lists_will() -> None:
    """Whoever sets them by hand goes by that table."""

    def said(cell: str) -> set[str]:
        return {f"drystone.{name}" for name in cell.replace("job topics of the tenants", "jobs").split(", ")}

    listed = {row[0]: row[1:] for row in rows_of("docs/operations.md", "Kafka")}
    assert listed.keys() == access.SERVICES.keys()
    for service, (reads, writes, group) in listed.items():
        may = access.SERVICES[service]
        assert (said(reads), said(writes)) == ({t.name for t in may.reads}, {t.name for t in may.writes}), service
        assert group == may.group


def test_documents_name_only_topics_of_the_table() -> None:
    known = {t.name for t in topics.ALL}
    for name in ("README.md", *(n for n in tracked() if n.startswith("docs/"))):
        named = set(re.findall(r"`(drystone\.[a-z-]+)`", text_of(name)))
        assert named <= known, f"{name}: {sorted(named - known)}"


def test_the_admission_policy_guards_every_key_that_the_binder_writes() -> None:
    policy = text_of("k8s/base/policies/result-annotations.yaml")
    for key in keys.RESULTS:
        assert f'"{key}"' in policy


# --- files ----------------------------------------------------------------------------------------------------------


def test_no_tracked_file_names_a_place_on_one_machine() -> None:
    # Spelled in parts, so that this file is no hit of its own.
    places = [re.escape(p) for p in ("/" + "work/", "/" + "root/", "/home/" + "runner", "/" + "tmp/go")]
    registries = [r"https?://[a-z0-9.-]+/(?:simple|artifactory|repository)/"]
    pattern = re.compile("|".join(places + registries))
    found = {name: hit.group(0) for name in tracked() if (hit := pattern.search(text_of(name)))}
    assert found == {}


def test_nothing_generated_or_secret_is_tracked() -> None:
    wrong = re.compile(r"(__pycache__|\.pyc$|\.egg-info|(^|/)\.venv/|\.pem$|\.key$|kubeconfig|\.log$|^var/)")
    assert [name for name in tracked() if wrong.search(name)] == []
    large = {name: size for name in tracked() if (size := (ROOT / name).stat().st_size) > 1_500_000}
    assert large == {}


def test_every_yaml_and_json_file_parses() -> None:
    for name in tracked():
        if name.endswith((".yaml", ".yml")):
            list(yaml.safe_load_all(text_of(name)))
        elif name.endswith(".json"):
            json.loads(text_of(name))


def test_every_module_of_the_product_says_what_it_is_for() -> None:
    missing = [
        name
        for name in tracked()
        if re.match(r"(libs|services|cli|bench|tools)/.*\.py$", name)
        and text_of(name).strip()
        and ast.get_docstring(ast.parse(text_of(name))) is None
    ]
    assert missing == []


def test_every_manifest_is_in_the_kustomization() -> None:
    listed = set(yaml.safe_load(text_of("k8s/base/kustomization.yaml"))["resources"])
    there = {n.removeprefix("k8s/base/") for n in tracked() if n.startswith("k8s/base/") and n.endswith(".yaml")}
    assert there - {"kustomization.yaml"} == listed
