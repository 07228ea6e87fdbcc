"""ProducerConfig: Java's names and defaults, all problems at once, and no secret shown."""

from __future__ import annotations

import logging
import pickle

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.records.compression import Codec
from tests.producer.config_cases import parse_config, parse_problems


def test_defaults_match_java_producer() -> None:
    config = parse_config()
    assert (config.acks, config.retries, config.enable_idempotence) == (-1, 2**31 - 1, True)
    assert (config.batch_size, config.linger_ms, config.buffer_memory) == (16384, 5, 33554432)
    assert (config.delivery_timeout_ms, config.request_timeout_ms, config.max_block_ms) == (120000, 30000, 60000)
    assert (config.max_request_size, config.max_in_flight_requests_per_connection) == (1048576, 5)
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms) == (100, 1000)
    assert (config.reconnect_backoff_ms, config.reconnect_backoff_max_ms) == (50, 1000)
    assert (config.metadata_max_age_ms, config.metadata_max_idle_ms) == (300000, 300000)
    assert (config.send_buffer_bytes, config.receive_buffer_bytes) == (131072, 32768)
    assert (config.metadata_recovery_strategy, config.connections_max_idle_ms) == ("rebootstrap", 540000)
    assert (config.codec, config.compression_level) == (Codec.NONE, None)
    assert config.bootstrap_servers == ("a:9092", "b:9093")


def test_values_may_be_strings_or_python_values() -> None:
    assert parse_config(linger_ms="7", enable_idempotence="FALSE", acks=1) == parse_config(
        linger_ms=7, enable_idempotence=False, acks="1"
    )
    assert ProducerConfig.parse({"bootstrap.servers": ["a:1", "b:2"]}).bootstrap_servers == ("a:1", "b:2")
    assert parse_config(acks="ALL").acks == parse_config(acks=" -1 ").acks == -1


def test_reports_all_faults_in_one_error() -> None:
    problems = parse_problems(
        linger_ms=-1, acks=2, batch_size="large", buffer_memroy=5, retries=True, compression_type="br"
    )
    assert len(problems) == 6
    for name in ("linger.ms", "acks", "batch.size", "buffer.memroy", "retries", "compression.type"):
        assert sum(problem.startswith(name) for problem in problems) == 1


def test_reports_conflicting_options_together_with_invalid_values() -> None:
    options = {
        "bootstrap.servers": "b:1",
        "delivery.timeout.ms": 10,
        "acks": "1",
        "enable.idempotence": True,
        "retries": "x",
    }
    with pytest.raises(ConfigurationError) as error:
        ProducerConfig.parse(options)
    assert len(error.value.problems) == 2
    assert "retries" in error.value.problems[0]
    assert error.value.problems[1].startswith("delivery.timeout.ms is 10, but must be at least")


def test_does_not_compare_options_with_invalid_option() -> None:
    options = {"bootstrap.servers": "b:1", "delivery.timeout.ms": 20_000, "request.timeout.ms": "1s"}
    with pytest.raises(ConfigurationError) as error:
        ProducerConfig.parse(options)
    assert len(error.value.problems) == 1
    assert "request.timeout.ms" in error.value.problems[0]


@pytest.mark.parametrize("value", ["1.5", 1.5, "", "1_000", "٣", True, [1], 2**31])
def test_rejects_values_that_are_not_integers_in_range(value: object) -> None:
    (problem,) = parse_problems(request_timeout_ms=value)
    shown_value = repr(value) if isinstance(value, str | float | int) else "of type list"
    assert problem == f"request.timeout.ms must be an integer from 0 to 2147483647. It is {shown_value}."


def test_transactions_have_requirements_of_idempotence() -> None:
    assert parse_problems(transactional_id="x", enable_idempotence=False) == (
        "enable.idempotence must not be false, because transactional.id is set.",
    )
    assert parse_problems(transactional_id="x", acks=1) == ("acks must be all, because transactional.id is set.",)
    assert parse_problems(transactional_id="x", retries=0) == (
        "retries must not be 0, because transactional.id is set.",
    )
    assert parse_config(transactional_id="x").enable_idempotence


def test_rejects_misspelt_name_with_suggestion() -> None:
    assert parse_problems(linger_msec=3) == (
        "linger.msec is not an option of the Kafka producer. Did you mean linger.ms?",
    )
    (problem,) = parse_problems(xyzzy="hunter2")
    assert "hunter2" not in problem


@pytest.mark.parametrize("strategy", ["full", "incremental", "INCREMENTAL"])
def test_allocation_strategy_of_java_has_no_effect(strategy: str) -> None:
    assert parse_config(buffer_memory_allocation_strategy=strategy, compression_type="zstd") == parse_config(
        compression_type="zstd"
    )


def test_rejects_unknown_allocation_strategy() -> None:
    (problem,) = parse_problems(buffer_memory_allocation_strategy="lazy")
    assert problem == "buffer.memory.allocation.strategy must be one of full, incremental. It is 'lazy'."


@pytest.mark.parametrize("rack", [{}, {"client_rack": " "}])
def test_rejects_rack_aware_partitioner_without_rack(rack: dict[str, object]) -> None:
    (problem,) = parse_problems(partitioner_rack_aware=True, **rack)
    assert problem.startswith("partitioner.rack.aware is true, so client.rack must be set")
    assert parse_config(partitioner_rack_aware="true", client_rack="eu-west-1a").partitioner_rack_aware
    assert parse_config(client_rack="eu-west-1a").client_rack == "eu-west-1a"


def test_rejects_rack_aware_partitioner_with_round_robin_partitioner() -> None:
    (problem,) = parse_problems(partitioner_rack_aware=True, client_rack="a", partitioner_class="RoundRobinPartitioner")
    expected = "partitioner.rack.aware has no effect, because partitioner.class is RoundRobinPartitioner. "
    assert problem == f"{expected}Remove one of them."


def test_treats_none_as_not_set() -> None:
    assert parse_config(linger_ms=None, client_id=None) == parse_config()


@pytest.mark.parametrize("servers", [None, "", " , ", "broker", "broker:0", "broker:70000", "a:1,b"])
def test_bootstrap_servers_must_name_host_and_port(servers: object) -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        ProducerConfig.parse({"bootstrap.servers": servers})


def test_bootstrap_servers_may_be_ipv6() -> None:
    assert ProducerConfig.parse({"bootstrap.servers": "[::1]:9092"}).bootstrap_servers == ("[::1]:9092",)


def test_rejects_explicit_delivery_timeout_below_linger_and_request() -> None:
    (problem,) = parse_problems(delivery_timeout_ms=1000, linger_ms=100, request_timeout_ms=901)
    assert "linger.ms + request.timeout.ms (1001)" in problem
    assert parse_config(delivery_timeout_ms=1000, linger_ms=100, request_timeout_ms=900).delivery_timeout_ms == 1000


def test_raises_default_delivery_timeout_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert parse_config(linger_ms=100_000, request_timeout_ms=100_000).delivery_timeout_ms == 200_000
    assert "delivery.timeout.ms" in caplog.text
    assert parse_config(linger_ms=2**40).delivery_timeout_ms == 2**31 - 1


@pytest.mark.parametrize("conflict", [{"acks": 1}, {"acks": 0}, {"retries": 0}])
def test_conflict_disables_idempotence_unless_requested(
    conflict: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    assert not parse_config(**conflict).enable_idempotence
    assert "Disabled idempotence" in caplog.text
    (problem,) = parse_problems(enable_idempotence=True, **conflict)
    assert next(iter(conflict)) in problem


def test_more_than_five_in_flight_require_disabled_idempotence() -> None:
    assert "enable.idempotence" in parse_problems(**{"max.in.flight.requests.per.connection": 6})[0]
    assert len(parse_problems(**{"max.in.flight.requests.per.connection": 6, "enable.idempotence": True})) == 1
    config = parse_config(**{"max.in.flight.requests.per.connection": 6, "enable.idempotence": False})
    assert config.max_in_flight_requests_per_connection == 6


def test_rejects_too_many_in_flight_without_idempotence_warning(caplog: pytest.LogCaptureFixture) -> None:
    parse_problems(**{"max.in.flight.requests.per.connection": 10})
    assert caplog.messages == []


@pytest.mark.parametrize(("acks", "warns"), [("0", True), ("1", False), ("all", False)])
def test_acks_0_warns_about_lost_records(acks: str, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    parse_config(acks=acks)
    assert ("Records can be lost without an error" in caplog.text) == warns


def test_idempotence_can_be_disabled() -> None:
    assert not parse_config(enable_idempotence="false", acks=0).enable_idempotence


def test_reconciles_first_and_maximum_backoff_as_in_java() -> None:
    assert parse_config(retry_backoff_ms=5000).retry_backoff_max_ms == 5000
    config = parse_config(reconnect_backoff_ms=5000, reconnect_backoff_max_ms=2000)
    assert (config.reconnect_backoff_ms, config.reconnect_backoff_max_ms) == (2000, 2000)


@pytest.mark.parametrize(
    ("codec", "good", "bad"), [("gzip", (-1, 1, 9), (0, 10)), ("lz4", (1, 17), (0, 18)), ("zstd", (-131072, 22), (23,))]
)
def test_compression_levels_have_javas_bounds(codec: str, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    for level in good:
        config = parse_config(**{"compression.type": codec, f"compression.{codec}.level": level})
        assert config.compression_level == level
    for level in bad:
        assert parse_problems(**{"compression.type": codec, f"compression.{codec}.level": level})


def test_uses_compression_level_of_selected_codec_only() -> None:
    config = parse_config(**{"compression.type": "gzip", "compression.lz4.level": 3})
    assert (config.codec, config.compression_level) == (Codec.GZIP, None)
    assert parse_config(**{"compression.type": "snappy"}).compression_level is None


@pytest.mark.parametrize(
    "prefix", ["", "org.apache.kafka.clients.producer.", "kafkashaded.org.apache.kafka.clients.producer."]
)
def test_javas_own_partitioners_are_known_by_name(prefix: str) -> None:
    assert parse_config(partitioner_class=prefix + "RoundRobinPartitioner").partitioner_class == "RoundRobinPartitioner"
    assert parse_config(partitioner_class=prefix + "UniformStickyPartitioner").partitioner_ignore_keys
    for name in ("DefaultPartitioner", "internals.DefaultPartitioner"):
        assert parse_config(partitioner_class=prefix + name).partitioner_class == "DefaultPartitioner"


@pytest.mark.parametrize("value", ["ssl", "Sasl_Ssl"])
def test_security_protocol_is_case_insensitive(value: str) -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";'
    login_options = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas} if "sasl" in value.lower() else {}
    assert parse_config(security_protocol=value, **login_options).security.protocol == value.upper()


def test_reports_unknown_security_protocol_with_other_faults() -> None:
    problems = parse_problems(security_protocol="SSH", linger_ms="x")
    assert any("security.protocol" in problem for problem in problems)
    assert any("linger.ms" in problem for problem in problems)


def test_secrets_are_in_neither_repr_nor_faults_and_survive_pickling() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";'
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    config = parse_config(**options)
    assert "hunter2" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config
    assert "hunter2" not in " ".join(parse_problems(**options, acks=9))


def test_client_config_has_same_values() -> None:
    client = parse_config(client_id="me", request_timeout_ms=5000).client_config()
    assert (client.client_id, client.request_timeout_ms, client.bootstrap_servers) == ("me", 5000, ("a:9092", "b:9093"))
