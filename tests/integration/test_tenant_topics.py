"""A tenant's own job topic is checked when the watcher starts, like all topics: a mistyped one would never be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from libs.bus.admin import ensure_topics
from libs.bus.settings import KafkaSettings
from libs.contracts.topics import Topic
from tools.stack import StackInfo

pytestmark = pytest.mark.real


def start_of_a_watcher(info: StackInfo, topic: str) -> tuple[int, str]:
    """Its exit code and what it says."""
    tenants = [{"name": "vision", "topic": topic, "namespaces": ["vision"]}]
    done = subprocess.run(
        [sys.executable, "-m", "services.watcher"],
        env={
            **os.environ,
            "DRYSTONE_KAFKA_BOOTSTRAP": info.kafka_bootstrap,
            "DRYSTONE_REDIS_URL": info.redis_url,
            "DRYSTONE_KUBECONFIG": str(info.kubeconfig),
            "DRYSTONE_TENANTS": json.dumps(tenants),
            "DRYSTONE_HTTP_PORT": "0",
        },
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()[-1]


def test_a_job_topic_that_does_not_exist_is_refused_at_start(info: StackInfo) -> None:
    name = f"vision-{uuid.uuid4().hex[:8]}.jobs"
    code, said = start_of_a_watcher(info, name)
    assert (code, said) == (2, f"watcher: Kafka topic {name} is missing; run `drystone topics --create`.")


async def test_a_job_topic_of_another_shape_is_refused_at_start(info: StackInfo) -> None:
    name = f"vision-{uuid.uuid4().hex[:8]}.jobs"
    kafka = KafkaSettings(info.kafka_bootstrap)
    assert await ensure_topics(kafka, create=True, topics=[Topic(name, 1)], replicas=1) == []
    code, said = start_of_a_watcher(info, name)
    assert code == 2
    assert said.startswith(f"watcher: Kafka topic {name}: partitions is 1, must be ")
