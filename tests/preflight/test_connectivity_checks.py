"""Checks of connections, security, metadata, versions and topics, and the messages of their results."""

from __future__ import annotations

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.new_topic import NewTopic
from spark_kafka_sink.client.options import parse_client_config
from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import OperatingSystem
from spark_kafka_sink.preflight import (
    INTERACTIVE_TIMEOUTS,
    Outcome,
    PreflightTimeouts,
    Target,
    build_preflight_error,
    preflight,
)
from spark_kafka_sink.preflight.connectivity_checks import check_name_resolution, check_topic_metadata
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.acl_operation import AclOperation
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.protocol.topic_names import TOPIC_NAME_RULE
from spark_kafka_sink.sasl.oauthbearer import build_unsecured_token
from spark_kafka_sink.sasl.scram import ScramClient
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker
from tests.fake_system import FakeSystem
from tests.network.security.test_oidc import serve_tokens
from tests.preflight.preflight_cases import (
    SECRET,
    build_error_message,
    build_secured_options,
    collect_outcomes,
    create_cluster,
    run_checks,
    run_interactive_checks,
)
from tests.simulated_cluster import SimulatedCluster


def test_names_option_of_missing_dead_letter_topic() -> None:
    cluster = create_cluster()
    config = parse_client_config({"bootstrap.servers": cluster.bootstrap_servers})
    target = Target(("t", "tt"), topic_option_names=(("tt", "deadLetterTopic"),), allow_auto_topic_creation=False)
    checks = {check.name: check for check in preflight(config, target, system=cluster.system)}
    assert checks["topic tt"].detail == "does not exist, but is named by the option deadLetterTopic"
    assert checks["topic tt"].remedy == "Create the topic, or correct deadLetterTopic."
    assert "Topic 'tt', named by the option deadLetterTopic, does not exist.\n" in build_error_message(checks)
    assert collect_outcomes(checks)["topic t"] == "passed"


def test_only_connection_failures_concern_the_address() -> None:
    cluster = create_cluster()
    cluster.system.names["nowhere"] = []
    unresolved = run_checks(cluster, "t", servers="nowhere:9092")
    assert [name for name, check in unresolved.items() if check.is_connectivity_failure] == ["bootstrap servers"]
    missing = run_checks(create_cluster(), "tpoic", create=False)
    assert collect_outcomes(missing)["topic tpoic"] == "failed"
    assert not any(check.is_connectivity_failure for check in missing.values())


def test_names_unresponsive_bootstrap_server() -> None:
    cluster = create_cluster()
    cluster.system.swallow("gone", 9092)
    assert "Bootstrap servers: gone:9092: no response within 5 s" in build_error_message(
        run_checks(cluster, servers="gone:9092")
    )


def test_warns_when_one_of_two_bootstrap_servers_fails() -> None:
    checks = run_checks(create_cluster(), "t", servers="broker7:9092,broker0:9092")
    assert checks["bootstrap servers"].outcome is Outcome.WARNING
    assert "1 of 2 reachable" in checks["bootstrap servers"].detail
    assert "broker7:9092" in checks["bootstrap servers"].detail
    assert build_preflight_error(checks.values()) is None


def test_names_unresolvable_advertised_address() -> None:
    cluster = create_cluster()
    cluster.system.names["broker1"] = []
    checks = run_checks(cluster, "t", servers="broker0:9092")
    assert collect_outcomes(checks)["topic t"] == "passed"
    assert ". Broker 1 (broker1:9093): the name cannot be resolved" in build_error_message(checks)
    assert "The broker advertises this address (advertised.listeners)" in build_error_message(checks)
    assert "broker 0" not in build_error_message(checks)


def test_names_unresponsive_leader() -> None:
    cluster = create_cluster()
    cluster.system.swallow("broker1", 9093)
    assert ". Broker 1 (broker1:9093): no response within 5 s." in build_error_message(
        run_checks(cluster, "t", servers="broker0:9092")
    )


def test_missing_topic_fails_without_being_created() -> None:
    cluster = create_cluster(auto_create_topics=True)
    checks = run_checks(cluster, "t", "tpoic", create=False)
    assert ". Topic 'tpoic' does not exist.\nWhat to do: Correct the name or create the topic" in build_error_message(
        checks
    )
    assert collect_outcomes(checks)["topic t"] == "passed"
    assert [*cluster.core.topics] == ["t"]


def test_warns_of_partition_without_leader() -> None:
    cluster = create_cluster()
    cluster.core.topic("t").partitions[1].leader = None
    checks = run_checks(cluster, "t")
    assert checks["topic t"].outcome is Outcome.WARNING
    assert "1 of 2 partitions without a leader: 1" in checks["topic t"].detail
    assert build_preflight_error(checks.values()) is None


@pytest.mark.parametrize(
    ("latency_ms", "detail"),
    [
        pytest.param(20, "no response within 5 s", id="time limit of the checks"),
        pytest.param(0, "bootstrap server broker0:9092 did not respond within 5 s", id="timeout of the request"),
    ],
)
def test_missing_metadata_response_fails_metadata_check(latency_ms: float, detail: str) -> None:
    cluster = SimulatedCluster(FakeSystem(latency_ms=latency_ms), topics={"t": 1})
    cluster.control.when(api=ApiKey.METADATA, times=None).never_respond()
    checks = run_checks(cluster, "t")
    assert collect_outcomes(checks)["metadata"] == "failed"
    assert collect_outcomes(checks)["topic t"] == "skipped"
    assert checks["metadata"].detail == detail
    assert checks["metadata"].remedy == "Check the log and the load of the broker, and of any proxy in front of it."


def test_metadata_request_that_closes_connection_suggests_another_protocol() -> None:
    cluster = create_cluster()
    cluster.control.when(api=ApiKey.METADATA, times=None).drop()
    check = run_checks(cluster, "t")["metadata"]
    assert check.outcome is Outcome.FAILED
    assert check.remedy.endswith("its listener may expect another security.protocol: SASL or TLS.")


def test_missing_topic_that_the_writer_creates_passes() -> None:
    cluster = create_cluster()
    target = Target(["tt"], new_topic=NewTopic("tt", partitions=3))
    check = run_interactive_checks(cluster, target)["topic tt"]
    assert (check.outcome, check.detail) == (Outcome.PASSED, "does not exist and will be created")
    assert check.remedy == "", "it is no misspelling of the existing topic t"
    assert "tt" not in cluster.core.topics, "the checks never create a topic"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (error_codes.LEADER_NOT_AVAILABLE, Outcome.WARNING),
        (error_codes.INVALID_TOPIC_EXCEPTION, Outcome.FAILED),
    ],
)
def test_topic_error_is_only_a_warning_if_it_is_retriable(code: int, outcome: Outcome) -> None:
    check = check_topic_metadata(MetadataResponseTopic(error_code=code, name="t"), [], AclOperation.WRITE)
    error = error_codes.lookup_error_code(code)
    assert (check.outcome, check.detail, check.remedy) == (outcome, error.name, error.advice)


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.DESCRIBE])
def test_remedies_for_reading_mention_neither_automatic_creation_nor_writing(operation: AclOperation) -> None:
    missing_topic = MetadataResponseTopic(error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION, name="t")
    assert check_topic_metadata(missing_topic, [], operation).remedy == "Correct the name or create the topic."
    assert "auto.create.topics.enable" in check_topic_metadata(missing_topic, [], AclOperation.WRITE).remedy
    invalid_topic = MetadataResponseTopic(error_code=error_codes.INVALID_TOPIC_EXCEPTION, name="a b")
    check = check_topic_metadata(invalid_topic, [], operation)
    assert (check.outcome, check.detail) == (Outcome.FAILED, "INVALID_TOPIC_EXCEPTION")
    assert check.remedy == f"A topic name consists of {TOPIC_NAME_RULE}."


@pytest.mark.parametrize(
    ("operations", "permitted"),
    [
        pytest.param(1 << 8 | 1 << 4, {AclOperation.WRITE, AclOperation.DESCRIBE}, id="describe and write"),
        pytest.param(1 << 8 | 1 << 3, {AclOperation.READ, AclOperation.DESCRIBE}, id="describe and read"),
        pytest.param(1 << 8, {AclOperation.DESCRIBE}, id="describe"),
        pytest.param(-(1 << 31), set(AclOperation), id="unknown"),
    ],
)
@pytest.mark.parametrize("operation", AclOperation)
def test_topic_without_required_permission_fails(
    operations: int, permitted: set[AclOperation], operation: AclOperation
) -> None:
    partition = MetadataResponsePartition(error_code=0, partition_index=0, leader_id=3)
    topic_response = MetadataResponseTopic(
        error_code=0, name="t", partitions=[partition], topic_authorized_operations=operations
    )
    check = check_topic_metadata(topic_response, [3], operation)
    if operation in permitted:
        assert check.outcome is Outcome.PASSED
        return
    assert check.outcome is Outcome.FAILED
    name = {AclOperation.READ: "Read", AclOperation.WRITE: "Write"}[operation]
    assert check.remedy == f"Grant this user the {name} permission on the topic."
    action = {AclOperation.READ: "read the topic", AclOperation.WRITE: "write to the topic"}[operation]
    assert check.detail == f"this user is not authorized to {action}"


@pytest.mark.parametrize(
    ("operation", "permissions"),
    [
        (AclOperation.READ, "Read and Describe permissions"),
        (AclOperation.WRITE, "Write and Describe permissions"),
        (AclOperation.DESCRIBE, "Describe permission"),
    ],
)
def test_remedy_of_hidden_topic_names_required_permissions(operation: AclOperation, permissions: str) -> None:
    topic = MetadataResponseTopic(error_code=error_codes.TOPIC_AUTHORIZATION_FAILED, name="t")
    assert check_topic_metadata(topic, [], operation).remedy == f"Grant this user the {permissions} on the topic."


@pytest.mark.parametrize(
    ("security", "message"),
    [
        (None, "the listener does not use SASL: check that security.protocol matches the port."),
        (
            ListenerSecurity("SASL_PLAINTEXT", mechanisms=("PLAIN",), users={"alice": SECRET}),
            "the listener does not support this mechanism. It supports PLAIN: change sasl.mechanism.",
        ),
    ],
    ids=["a plaintext port", "another mechanism"],
)
def test_listener_mismatch_does_not_mention_password(security: ListenerSecurity | None, message: str) -> None:
    with embedded_broker(security=security) as broker:
        results = preflight(parse_client_config(build_secured_options(broker.bootstrap_servers)), Target(["t"]))
    (check,) = (check for check in results if check.outcome is Outcome.FAILED)
    assert str(check).endswith(message)
    assert "password" not in str(check)


def test_token_endpoint_error_has_remedy_of_endpoint() -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",))
    with embedded_broker(security=security) as broker:
        options = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        }
        results = preflight(parse_client_config(options), Target(), timeouts=INTERACTIVE_TIMEOUTS)
        checks = {check.name: check for check in results}
    assert "the token endpoint 127.0.0.1:1 cannot be used: ConnectionRefusedError" in checks["security"].detail
    assert not checks["security"].detail.endswith(" ")
    assert checks["security"].remedy == (
        "Check sasl.oauthbearer.token.endpoint.url, and that this machine can reach the endpoint."
    )


def test_retries_after_token_endpoint_was_briefly_unavailable() -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",))
    with serve_tokens() as endpoint, embedded_broker(security=security) as broker:
        endpoint.add_response(b"", status=503)
        endpoint.add_response({"access_token": build_unsecured_token({"sub": "alice", "exp": 4_102_444_800})})
        options = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        }
        results = preflight(parse_client_config(options), Target())
    assert build_preflight_error(results) is None
    assert len(endpoint.requests) == 2


def test_lost_connection_to_responding_broker_does_not_suggest_checking_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lose_connection(client: ScramClient) -> bytes:
        raise DisconnectedError("the peer closed the connection")

    monkeypatch.setattr(ScramClient, "start", lose_connection)
    with embedded_broker(security=ListenerSecurity("SASL_PLAINTEXT", users={"alice": SECRET})) as broker:
        config = parse_client_config(build_secured_options(broker.bootstrap_servers))
        results = preflight(config, Target(["t"]), timeouts=PreflightTimeouts(300, 300))
    (check,) = (check for check in results if check.outcome is Outcome.FAILED)
    assert check.name == "bootstrap servers"
    assert check.detail.endswith(": the peer closed the connection (during SASL authentication)")
    assert check.remedy == "Check the log and the load of the broker, and of any proxy in front of it."
    assert not check.is_connectivity_failure


def test_plaintext_to_sasl_listener_suggests_security_protocol() -> None:
    security = ListenerSecurity("SASL_PLAINTEXT", users={"alice": SECRET})
    with embedded_broker(security=security) as broker:
        checks = preflight(
            parse_client_config({"bootstrap.servers": broker.bootstrap_servers}),
            Target(["t"]),
            timeouts=PreflightTimeouts(300, 300),
        )
    assert "within" not in str(build_preflight_error(checks)), "the broker closed the connection at once"
    assert "its listener may expect another security.protocol: SASL or TLS." in str(build_preflight_error(checks))


def test_failure_shows_address_once() -> None:
    config = parse_client_config({"bootstrap.servers": "localhost:1"})
    checks = {check.name: check for check in preflight(config, Target(["t"]), timeouts=PreflightTimeouts(300, 300))}
    assert checks["bootstrap servers"].detail == "localhost:1: Connection refused"


@pytest.mark.parametrize("api", [ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.FETCH])
def test_missing_api_fails_only_exactly_once(api: ApiKey) -> None:
    cluster = create_cluster(version_limits={api: VersionRange(0, -1)})
    checks = run_interactive_checks(cluster, Target(["t"], transactional_id="an-id", exactly_once=True))
    error = build_preflight_error(checks.values())
    assert error is not None
    assert f"does not support the API {api.name}" in str(error)
    assert "Exactly-once delivery requires Kafka 3.0 or newer" in str(error)
    assert (
        build_preflight_error(run_interactive_checks(cluster, Target(["t"], transactional_id="an-id")).values()) is None
    )


def test_missing_api_fails_only_idempotent_write() -> None:
    cluster = create_cluster(version_limits={ApiKey.INIT_PRODUCER_ID: VersionRange(0, -1)})
    error = build_preflight_error(run_interactive_checks(cluster, Target(["t"], idempotent=True)).values())
    assert error is not None
    assert "does not support the API INIT_PRODUCER_ID" in str(error)
    assert build_preflight_error(run_interactive_checks(cluster, Target(["t"])).values()) is None


def test_ip_address_needs_no_lookup() -> None:
    config = parse_client_config({"bootstrap.servers": "127.0.0.1:1,localhost:1"})
    checks = preflight(config, Target(), timeouts=INTERACTIVE_TIMEOUTS, thorough=True)
    detail = next(check for check in checks if check.name == "names").detail
    assert detail.startswith("127.0.0.1 needs no lookup; localhost resolves to ")


def test_host_resolves_if_one_of_its_nodes_does() -> None:
    nodes = [Node(1, "127.0.0.1", 0), Node(2, "127.0.0.1", 9092)]
    check = check_name_resolution(nodes, OperatingSystem())
    assert (check.outcome, check.detail) == (Outcome.PASSED, "127.0.0.1 needs no lookup")


def test_warns_of_unresolvable_host() -> None:
    cluster = create_cluster()
    cluster.system.names["broker1"] = []
    check = run_interactive_checks(cluster, Target(connect_all_brokers=True), thorough=True)["names"]
    assert check.outcome is Outcome.WARNING
    assert "broker1 does not resolve" in check.detail
