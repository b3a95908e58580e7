"""Kafka as one node that is broker and controller, without ZooKeeper.

Secured, clients come by SCRAM over TLS and may do what the access lists say; the node itself, as its own client at the
controller's listener, comes by its certificate.
"""

import struct
import subprocess
import uuid
from base64 import urlsafe_b64encode

from tools.stack import probe
from tools.stack.accounts import ADMIN
from tools.stack.errors import StackError
from tools.stack.info import StackInfo
from tools.stack.parts.part import Part, Tools
from tools.stack.paths import write_private

_LOG4J = """\
rootLogger.level = WARN
rootLogger.appenderRefs = stdout
rootLogger.appenderRef.stdout.ref = stdout
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d %p %c{1}: %m%n
"""


def _properties(info: StackInfo) -> str:
    broker, controller = info.address("kafka"), info.address("kafka", "controller")
    return f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{controller}
listeners=BROKER://{broker},CONTROLLER://{controller}
advertised.listeners=BROKER://{broker}
{_security(info)}inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs={info.directory / "kafka" / "data"}
# A topic that nobody made on purpose is a mistake that should show.
auto.create.topics.enable=false
# One node holds one copy.
default.replication.factor=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# 50 by default, each with files of its own that are opened when the first group forms.
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=2
# Groups form at once and notice a lost member soon: tests stop members on purpose.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
# A broker that was killed may come back when its old session has ended.
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
# Compaction that a test can wait for; its buffer of 128 MB would take a quarter of the heap.
log.cleaner.backoff.ms=1000
log.cleaner.dedupe.buffer.size=16777216
# Sized for two cores.
num.network.threads=2
num.io.threads=4
background.threads=2
"""


def _security(info: StackInfo) -> str:
    if not info.settings.secured:
        return "listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
    files = info.certificates
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{ADMIN}" password="{info.passwords[ADMIN]}";'
    )
    return f"""\
listener.security.protocol.map=BROKER:SASL_SSL,CONTROLLER:SSL
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
listener.name.broker.scram-sha-512.sasl.jaas.config={login}
ssl.keystore.type=PEM
ssl.keystore.location={files.both}
ssl.truststore.type=PEM
ssl.truststore.location={files.authority}
listener.name.controller.ssl.client.auth=required
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=false
super.users=User:{ADMIN};User:CN=kafka
"""


def _credentials(info: StackInfo) -> list[str]:
    """Known before the node first starts, so that it can let itself in."""
    if not info.settings.secured:
        return []
    options = []
    for name, password in info.passwords.items():
        options += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
    return options


def _java(info: StackInfo, tools: Tools, *options: str) -> list[str]:
    return [
        str(tools["java"]),
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={info.directory / 'kafka' / 'log4j2.properties'}",
        *options,
        "-cp",
        f"{tools['kafka']}/*",
    ]


def _prepare(info: StackInfo, tools: Tools) -> None:
    folder = info.directory / "kafka"
    properties = folder / "server.properties"
    write_private(properties, _properties(info))
    write_private(folder / "log4j2.properties", _LOG4J)
    if (folder / "data" / "meta.properties").exists():
        return
    # A leading dash would be read as an option of the tool.
    cluster = "k" + urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode("ascii")[1:]
    # Runs for a second: the JVM is told not to compile with care what runs once.
    command = [*_java(info, tools, "-XX:TieredStopAtLevel=1", "-Xshare:auto"), "kafka.tools.StorageTool"]
    command += ["format", "--cluster-id", cluster, "--config", str(properties), *_credentials(info)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise StackError(f"Kafka's storage could not be made: {' '.join(said)}")


def _command(info: StackInfo, tools: Tools) -> list[str]:
    # A broker that lives for minutes: the optimising compiler and a concurrent collector would take the two cores that
    # are being measured for longer than they would give anything back.
    options = ["-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    return [*_java(info, tools, *options), "kafka.Kafka", str(info.directory / "kafka" / "server.properties")]


def metadata_request(correlation: int) -> bytes:
    """A Metadata request, version 1, for no topic: the answer names the brokers."""
    client = b"stack"
    body = struct.pack(">hhih", 3, 1, correlation, len(client)) + client + struct.pack(">i", 0)
    return struct.pack(">i", len(body)) + body


def brokers_in(answer: bytes, correlation: int) -> int:
    """How many brokers a Metadata answer names; 0 for anything else."""
    if len(answer) < 12:
        return 0
    size, answered, brokers = struct.unpack(">iii", answer[:12])
    return brokers if answered == correlation and size >= 8 else 0


def versions_request(correlation: int) -> bytes:
    """An ApiVersions request, version 0: the one thing that may be asked before a client says who it is."""
    client = b"stack"
    body = struct.pack(">hhih", 18, 0, correlation, len(client)) + client
    return struct.pack(">i", len(body)) + body


def _ready(info: StackInfo) -> bool:
    if info.settings.secured:
        said = probe.exchange(info.address("kafka"), versions_request(7), ca_file=info.certificates.authority)
        return len(said) >= 10 and struct.unpack(">ih", said[4:10]) == (7, 0)
    return brokers_in(probe.exchange(info.address("kafka"), metadata_request(7)), 7) > 0


KAFKA = Part("kafka", ("java", "kafka"), _command, _ready, _prepare, second_ports=("controller",))
