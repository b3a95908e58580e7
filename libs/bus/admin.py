"""Topics as they must be, and how they are: made, checked, told apart.

Guarantees: nothing that exists is changed. A topic of another shape is drift: a name, what it is, what it must be. Why
drift is an error: another number of partitions sends a job to an owner that does not know it, and a log topic where a
compacted one is meant loses facts silently after the retention time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, TopicAuthorizationFailedError, for_code

from libs.bus.entry import account, why_not
from libs.bus.port import BusMisconfigured
from libs.bus.settings import KafkaSettings
from libs.contracts.topics import ALL, Topic

log = structlog.get_logger()

_MISSING: Final = "is missing"


@dataclass(frozen=True, slots=True)
class Drift:
    topic: str
    what: str  # "partitions", or Kafka's name of a setting
    found: str
    wanted: str

    def __str__(self) -> str:
        if self.found == _MISSING:
            return f"topic {self.topic} is missing"
        return f"topic {self.topic}: {self.what} is {self.found}, must be {self.wanted}"


async def ensure_topics(
    settings: KafkaSettings,
    *,
    create: bool,
    topics: Sequence[Topic] = ALL,
    replicas: int | None = None,
) -> list[Drift]:
    """What differs from the table; with `create`, after making what is missing. `replicas` None: three where there
    are three brokers, else one. Raises BusUnavailable when no broker answers, BusMisconfigured when we are not let in
    or may not see a topic."""
    admin = AIOKafkaAdminClient(**settings.client())
    try:
        async with asyncio.timeout(settings.request_s):
            await admin.start()
            found = await _found(admin, topics, settings)
            missing = [topic for topic in topics if topic.name not in found]
            if create and missing:
                if replicas is None:
                    brokers = len((await admin.describe_cluster())["brokers"])
                    replicas = 3 if brokers >= 3 else 1
                await _create(admin, missing, replicas)
                found = await _appeared(admin, topics, settings)
            return await _compare(admin, topics, found)
    except (KafkaError, TimeoutError, OSError) as error:
        raise await why_not(settings, error) from None
    finally:
        await admin.close()


async def check_topics(settings: KafkaSettings, topics: Sequence[Topic] = ALL) -> None:
    """Raises BusMisconfigured with one sentence when a topic is missing or has drifted."""
    drift = await ensure_topics(settings, create=False, topics=topics)
    if drift:
        more = f" (and {len(drift) - 1} more)" if len(drift) > 1 else ""
        cure = "run `drystone topics --create`" if drift[0].found == _MISSING else "run `drystone topics` to see all"
        raise BusMisconfigured(f"Kafka {drift[0]}{more}; {cure}.")


async def _found(admin: Any, topics: Sequence[Topic], settings: KafkaSettings) -> dict[str, list[dict[str, Any]]]:
    """Partitions by topic, for those that exist."""
    described = await admin.describe_topics([topic.name for topic in topics])
    hidden = [t["topic"] for t in described if t["error_code"] == TopicAuthorizationFailedError.errno]
    if hidden:
        more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        raise BusMisconfigured(
            f"Kafka does not let {account(settings)} describe the topic {min(hidden)}{more}: its access list lacks it."
        )
    return {t["topic"]: t["partitions"] for t in described if not t["error_code"]}


async def _appeared(admin: Any, topics: Sequence[Topic], settings: KafkaSettings) -> dict[str, list[dict[str, Any]]]:
    """A broker learns of new topics a moment after the controller made them."""
    while True:
        found = await _found(admin, topics, settings)
        if all(topic.name in found and all(p["leader"] >= 0 for p in found[topic.name]) for topic in topics):
            return found
        await asyncio.sleep(0.05)


async def _create(admin: Any, missing: Sequence[Topic], replicas: int) -> None:
    answer = await admin.create_topics(
        [
            NewTopic(topic.name, topic.partitions, replicas, topic_configs={**topic.config(replicas), **topic.tuning()})
            for topic in missing
        ]
    )
    for name, code, *text in answer.topic_errors:
        # Somebody else may have made it meanwhile; the comparison that follows says whether it is right.
        if code and for_code(code) is not TopicAlreadyExistsError:
            raise BusMisconfigured(f"Kafka does not create the topic {name}: {text[0] or for_code(code).__name__}.")


async def _compare(admin: Any, topics: Sequence[Topic], found: dict[str, list[dict[str, Any]]]) -> list[Drift]:
    drift: list[Drift] = []
    present = [topic for topic in topics if topic.name in found]
    configs = await _configs(admin, [topic.name for topic in present])
    for topic in topics:
        partitions = found.get(topic.name)
        if partitions is None:
            drift.append(Drift(topic.name, "topic", _MISSING, "there"))
            continue
        if len(partitions) != topic.partitions:
            drift.append(Drift(topic.name, "partitions", str(len(partitions)), str(topic.partitions)))
        replicas = min((len(p["replicas"]) for p in partitions), default=1)
        config = configs.get(topic.name)
        if config is None:
            continue
        for name, wanted in topic.config(replicas).items():
            if config.get(name) != wanted:
                drift.append(Drift(topic.name, name, config.get(name, "unset"), wanted))
    return drift


async def _configs(admin: Any, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Settings by topic; topics whose settings we may not read are left out, with a warning."""
    if not names:
        return {}
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    configs: dict[str, dict[str, str]] = {}
    for answer in answers:
        for code, text, _kind, name, entries in answer.resources:
            if code:
                log.warning("settings of a topic cannot be read", topic=name, fault=text or for_code(code).__name__)
                continue
            configs[name] = {entry[0]: entry[1] for entry in entries}
    return configs


async def create_topics(bootstrap: str, replicas: int = 1) -> None:
    """Every topic of the table on an unsecured broker; raises BusMisconfigured when one that exists has drifted."""
    drift = await ensure_topics(KafkaSettings(bootstrap), create=True, replicas=replicas)
    if drift:
        raise BusMisconfigured(f"Kafka {drift[0]}.")
