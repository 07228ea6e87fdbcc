"""`pykafka doctor` on a real Kafka cluster: certificates, logins and single ACLs. Writes verify the findings."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from integration.support.kafka_cluster import USERS, KafkaCluster
from integration.support.librdkafka import TIMEOUT_SECONDS, create_topic
from spark_kafka_sink import KafkaProducer, KafkaSinkError, RecordColumns
from spark_kafka_sink.cli.main import main
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import WriterKind
from spark_kafka_sink.exactly_once.settings import ExactlyOnceSettings
from tests.waiting import wait_until

pytestmark = pytest.mark.needs("kafka")

Output = pytest.CaptureFixture[str]
Checks = dict[str, dict[str, str]]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
PREFIX = "jobs-"
OUTCOMES = {"passed", "failed"}


def login(user: str, password: str | None = None) -> list[str]:
    jaas = f'{PLAIN} required username="{user}" password="{password or USERS[user]}";'
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    return [argument for name, value in options.items() for argument in ("-X", f"{name}={value}")]


def tls(kafka: KafkaCluster, authority: str) -> list[str]:
    options = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(kafka.certificates / authority)}
    client_options = {"security.protocol": "SSL", **options}
    return [argument for name, value in client_options.items() for argument in ("-X", f"{name}={value}")]


def doctor(output: Output, servers: str, *arguments: str) -> tuple[int, Checks]:
    output.readouterr()
    status = main(["doctor", "--json", "--bootstrap-server", servers, *arguments])
    document: dict[str, Any] = json.loads(output.readouterr().out)
    return status, {check["name"]: check for check in document["checks"]}


def outcomes(checks: Checks, *names: str) -> list[str]:
    return [checks[name]["outcome"] for name in names]


def grant(kafka: KafkaCluster, user: str, kind: ResourceType, name: str, operations: Sequence[AclOperation]) -> None:
    pattern = ResourcePatternType.PREFIXED if name == PREFIX else ResourcePatternType.LITERAL
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap()})
    bindings = [
        AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for operation in operations
    ]
    for result in admin.create_acls(bindings).values():
        result.result(TIMEOUT_SECONDS)


def can_write(kafka: KafkaCluster, user: str, topic: str) -> bool:
    arguments = login(user)
    options = dict(pair.split("=", 1) for pair in arguments[1::2])
    config = {"bootstrap.servers": kafka.bootstrap("SASL_PLAINTEXT"), "max.block.ms": "10000", **options}
    with KafkaProducer(config) as producer:
        try:
            producer.send_columns(topic, RecordColumns(pa.array([b"x"]))).result().raise_for_failures()
        except KafkaSinkError:
            return False
    return True


def test_doctor_reports_each_missing_permission_as_a_write_does(strict_kafka: KafkaCluster, capsys: Output) -> None:
    kafka, topic = strict_kafka, create_topic(strict_kafka.bootstrap())
    command_arguments = [*login("bob"), "--topic", topic, "--transactional-id", f"{PREFIX}1"]
    rights = (f"topic {topic}", "idempotent write", "transactions")

    def examined(expected: dict[str, str]) -> Checks:
        """Wait until the checks are as expected, because a broker learns of a new ACL with a delay. Return them."""
        latest: Checks = {}

        def are_so() -> bool:
            latest.update(doctor(capsys, kafka.bootstrap("SASL_PLAINTEXT"), *command_arguments)[1])
            return {name: latest[name][key] for name, key, _ in wanted} == {name: value for name, _, value in wanted}

        wanted = [(name, "outcome" if value in OUTCOMES else "detail", value) for name, value in expected.items()]
        wait_until(are_so, lambda: json.dumps(latest, indent=1))
        return latest

    checks = examined(
        dict.fromkeys(rights, "failed")
        | {rights[0]: "this user is not authorized to describe the topic (TOPIC_AUTHORIZATION_FAILED)"}
    )
    assert checks["clock"]["outcome"] == "skipped"
    assert not can_write(kafka, "bob", topic)

    grant(kafka, "bob", ResourceType.TOPIC, topic, [AclOperation.DESCRIBE])
    examined(dict.fromkeys(rights, "failed") | {rights[0]: "this user is not authorized to write to the topic"})
    assert not can_write(kafka, "bob", topic)

    grant(kafka, "bob", ResourceType.TOPIC, topic, [AclOperation.WRITE])
    examined(dict(zip(rights, ("passed", "passed", "failed"), strict=True)))
    assert can_write(kafka, "bob", topic)

    grant(kafka, "bob", ResourceType.TRANSACTIONAL_ID, PREFIX, [AclOperation.WRITE])
    grant(kafka, "bob", ResourceType.TOPIC, topic, [AclOperation.DESCRIBE_CONFIGS])
    grant(kafka, "bob", ResourceType.BROKER, "kafka-cluster", [AclOperation.DESCRIBE])
    checks = examined(dict.fromkeys((*rights, "clock", f"largest message of {topic}"), "passed"))
    assert {check["outcome"] for check in checks.values()} == {"passed"}
    assert "1048588" in checks[f"largest message of {topic}"]["detail"]
    assert "metadata.version" in checks["versions"]["detail"]


def test_permission_checks_leave_no_transactional_id(strict_kafka: KafkaCluster, capsys: Output) -> None:
    kafka, topic = strict_kafka, create_topic(strict_kafka.bootstrap())
    status, _ = doctor(capsys, kafka.bootstrap(), "--topic", topic, "--transactional-id", "never-used")
    assert status == 0
    kafka_transactions = "org.apache.kafka.tools.TransactionsCommand"
    assert "never-used" not in kafka.run_tool(kafka_transactions, "--bootstrap-server", kafka.bootstrap(), "list")


def test_reports_wrong_password_without_showing_it(strict_kafka: KafkaCluster, capsys: Output) -> None:
    status, checks = doctor(capsys, strict_kafka.bootstrap("SASL_PLAINTEXT"), *login("bob", "not-this-one"))
    assert (status, checks["security"]["outcome"]) == (1, "failed")
    assert "not-this-one" not in json.dumps(checks)


@pytest.mark.parametrize(
    ("listener", "authority", "outcome", "message"),
    [
        ("SSL", "ca.pem", {"passed", "warning"}, "CN=node for localhost; issued by CN=test authority"),
        ("SSL", "stranger-ca.pem", {"failed"}, "an authority that is not trusted"),
        ("EXPIRED", "ca.pem", {"failed"}, "has expired: renew it on the broker"),
    ],
)
def test_shows_certificates_and_their_problems(
    strict_kafka: KafkaCluster, capsys: Output, listener: str, authority: str, outcome: set[str], message: str
) -> None:
    servers = strict_kafka.bootstrap(listener)
    status, checks = doctor(capsys, servers, *tls(strict_kafka, authority))
    check = checks[f"certificate of {servers}"]
    assert check["outcome"] in outcome
    assert message in f"{check['detail']} {check['remedy']}"
    assert "valid until" in check["detail"] or "expired on" in check["detail"]
    assert status == (1 if "failed" in outcome else 0)


def test_doctor_names_security_protocol_for_plaintext_client_of_tls_listener(
    strict_kafka: KafkaCluster, capsys: Output
) -> None:
    status, checks = doctor(capsys, strict_kafka.bootstrap("SSL"))
    assert status == 1
    failed = json.dumps([check for check in checks.values() if check["outcome"] == "failed"])
    assert "security.protocol" in failed


def test_produce_writes_lines_and_cat_prints_them(strict_kafka: KafkaCluster, tmp_path: Path) -> None:
    from integration.support.librdkafka import read_topic

    bootstrap = strict_kafka.bootstrap()
    topic = create_topic(bootstrap, partitions=2)
    command = [sys.executable, "-m", "spark_kafka_sink"]
    lines = [f"k{number}={number}".encode() for number in range(1_000)]
    arguments = ["--bootstrap-server", bootstrap, topic]
    produce = [*command, "produce", *arguments, "--key-separator", "=", "--header", "from=shell"]
    done = subprocess.run(produce, input=b"\n".join(lines), capture_output=True, check=True)
    assert done.stderr.startswith(b"1,000 records in ")
    stored = read_topic(bootstrap, topic)
    assert sorted((record.key, record.value) for record in stored) == sorted(
        (key, value) for key, value in (line.split(b"=") for line in lines)
    )
    assert {record.headers for record in stored} == {(("from", b"shell"),)}
    cat = [*command, "cat", *arguments, "--columns", "key,value,headers"]
    shown = subprocess.run(cat, capture_output=True, check=True).stdout.splitlines()
    assert sorted(shown) == sorted(line.replace(b"=", b"\t") + b"\tfrom=shell" for line in lines)


def test_lists_and_aborts_open_transaction_like_kafkas_tool(strict_kafka: KafkaCluster, capsys: Output) -> None:
    kafka, topic = strict_kafka, create_topic(strict_kafka.bootstrap())
    prefix, servers = "pykafka-left-over", ["--bootstrap-server", strict_kafka.bootstrap()]
    config = parse_client_config({"bootstrap.servers": kafka.bootstrap()})
    with Driver(ExactlyOnceSettings(config, prefix, writer_kind=WriterKind.JOB)) as driver:
        name = driver.begin("a start").build_task_id(0, 0)
    with KafkaProducer({"bootstrap.servers": kafka.bootstrap(), "transactional.id": name}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns(topic, RecordColumns(pa.array([b"x"]))).result().raise_for_failures()
        capsys.readouterr()
        assert main(["transactions", *servers, "--json"]) == 0
        (shown,) = (row for row in json.loads(capsys.readouterr().out) if row["prefix"] == prefix)
        assert [(transaction["transactional_id"], transaction["partitions"]) for transaction in shown["open"]] == [
            (name, [[topic, 0]])
        ]
        assert "Ongoing" in _find_transaction_line(kafka, name)
        assert main(["transactions", *servers, "abort", "--prefix", prefix, "--yes"]) == 0
        assert f"Aborted: {name}." in capsys.readouterr().out
        assert "CompleteAbort" in _find_transaction_line(kafka, name)
        producer.close(timeout=0)


def _find_transaction_line(kafka: KafkaCluster, name: str) -> str:
    command = "org.apache.kafka.tools.TransactionsCommand"
    acls = kafka.run_tool(command, "--bootstrap-server", kafka.bootstrap(), "list").splitlines()
    return next(line for line in acls if line.startswith(name))


def test_first_epoch_check_passes_repeatedly(strict_kafka: KafkaCluster, capsys: Output, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    conf = tmp_path / "options"
    conf.write_text("topic=none-yet\ndeliveryGuarantee=exactly-once\ntransactionalIdPrefix=first-epoch\n")
    for _ in range(2):
        _, checks = doctor(capsys, strict_kafka.bootstrap(), "--spark-conf", str(conf))
        assert outcomes(checks, "transactions", "first epoch") == ["passed", "passed"]
