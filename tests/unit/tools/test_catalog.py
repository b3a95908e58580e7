"""The catalogue of events is what the code says, and the code does what the catalogue says."""

import ast
import importlib
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from libs.contracts import events, topics
from libs.contracts.access import SERVICES
from libs.contracts.strict import Rejected
from libs.contracts.submission import Submission, parse_submit
from libs.contracts.tenants import TenantPolicy
from libs.observe.metrics import REGISTRY
from tools import catalog

ROOT = Path(__file__).resolve().parents[3]
DRAFT = jsonschema.Draft202012Validator


def schema(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "docs" / "schemas" / f"{name}.json").read_text()))


def test_the_committed_catalogue_is_what_the_code_gives() -> None:
    assert catalog.stale() == [], "run `python -m tools.catalog`"


def test_a_changed_a_missing_and_a_left_over_file_are_stale(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    for name, text in catalog.files().items():
        (tmp_path / name).write_text(text)
    assert catalog.stale(tmp_path) == []
    (tmp_path / "schemas/gpus.json").write_text("{}")
    (tmp_path / "schemas/old.json").write_text("{}")
    (tmp_path / "schemas/plans.json").unlink()
    assert catalog.stale(tmp_path) == ["schemas/gpus.json", "schemas/old.json", "schemas/plans.json"]


def test_every_type_and_every_topic_is_in_the_catalogue() -> None:
    types = {value for name, value in vars(events.EventType).items() if not name.startswith("_")}
    assert {event.type for event in catalog.EVENTS} == types
    assert {event.topic.name for event in catalog.EVENTS} == {topic.name for topic in topics.ALL}


def test_every_schema_is_one_and_every_reference_leads_somewhere() -> None:
    for event in catalog.EVENTS:
        DRAFT.check_schema(schema(event.name))
        for target in re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(schema(event.name))):
            assert target in schema(event.name)["$defs"]
    document = yaml.safe_load((ROOT / "docs/asyncapi.yaml").read_text())
    for target in re.findall(r"\$ref: '?(?:#|\./)([^'\s]+)", (ROOT / "docs/asyncapi.yaml").read_text()):
        if target.startswith("schemas/"):
            assert (ROOT / "docs" / target).is_file()
            continue
        found: Any = document
        for step in target.strip("/").split("/"):
            found = found[step]


def test_the_documents_example_is_valid_and_what_the_code_refuses_is_not() -> None:
    text = (ROOT / "docs/events.md").read_text()
    said = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert said is not None
    validator = DRAFT(schema("job-submit"))
    tenant = TenantPolicy(namespaces=("research",), queue="research")
    good = json.loads(said.group(1))
    whole = {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    for job in (good, {**good, "roles": [{"template": {"image": "x"}}]}):
        validator.validate(job)
        assert isinstance(parse_submit(json.dumps(job).encode(), tenant), Submission)
    validator.validate({**good, "roles": [{"template": whole}]})
    wrong: list[dict[str, Any]] = [
        {**good, "colour": "red"},
        {**good, "id": ""},
        {**good, "roles": []},
        {**good, "roles": [{"template": {"image": "x"}, "replicas": 0}]},
        {**good, "roles": [{"template": {"image": "x", "resources": {"gpu": "1.5"}}}]},
        {**good, "backoffLimit": "1"},
    ]
    for job in wrong:
        assert not validator.is_valid(job), job
        assert isinstance(parse_submit(json.dumps(job).encode(), tenant), Rejected), job


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_uses_the_topics_that_the_table_of_access_gives_it(service: str) -> None:
    """By what its modules import; the watcher's job topics come from its tenants."""
    package = ROOT / "services" / service.replace("-", "_")
    imports = [
        node
        for file in package.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    named = {alias.name for node in imports if node.module == "libs.contracts.topics" for alias in node.names}
    taken = {(node.module, alias.name) for node in imports for alias in node.names}
    if ("libs.bus.letters", "dead_letter") in taken or any(module == "libs.bus.batches" for module, _ in taken):
        named.add("DEAD_LETTERS")
    access = SERVICES[service]
    used = {topic.name for topic in (*access.reads, *access.writes)} - {topics.JOBS.name}
    assert {topic.name for name in named if isinstance(topic := getattr(topics, name), topics.Topic)} == used


@pytest.mark.parametrize("service", ["watcher", "preemptor", "binder"])
def test_a_service_joins_the_group_that_the_table_of_access_gives_it(service: str) -> None:
    assert SERVICES[service].group == importlib.import_module(f"services.{service}.intake").GROUP


def test_placement_joins_its_group() -> None:
    from services.placement.settings import PlacementSettings

    assert PlacementSettings.model_fields["placement_group"].default == SERVICES["placement"].group


def test_every_metric_of_a_service_is_in_the_table() -> None:
    for service in SERVICES:
        importlib.import_module(f"services.{service.replace('-', '_')}.app")
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    made = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in REGISTRY.collect()
        if family.name.startswith(("drystone_", "gpu_"))
    }
    assert len(made) > 60
    assert made <= listed
