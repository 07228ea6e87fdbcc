"""Option `clientRackEnv`: the Kafka options that it requires, and the driver's producers, which ignore it."""

from __future__ import annotations

import logging

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.options.parse import parse_options

NEEDED = {"kafka.bootstrap.servers": "b:9092", "topic": "t"}
RACK_AWARE = {"kafka.partitioner.rack.aware": "true"}


def problems(**options: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as error:
        parse_options(NEEDED | {name.replace("__", "."): value for name, value in options.items()})
    return error.value.problems


def test_driver_producers_are_not_rack_aware_with_rack_of_executors() -> None:
    options = parse_options(NEEDED | RACK_AWARE | {"clientRackEnv": "ZONE"})
    assert options.rack_env_variable == "ZONE"
    assert not options.producer_config().partitioner_rack_aware


def test_fixed_rack_needs_no_variable() -> None:
    options = parse_options(NEEDED | RACK_AWARE | {"kafka.client.rack": "a"})
    assert options.rack_env_variable is None
    assert options.producer_config().client_rack == "a"


def test_rejects_variable_without_rack_aware_partitioner() -> None:
    (problem,) = problems(clientRackEnv="ZONE")
    assert problem == "Option 'clientRackEnv' has no effect unless kafka.partitioner.rack.aware is true."


def test_rejects_variable_and_fixed_rack() -> None:
    (problem,) = problems(clientRackEnv="ZONE", kafka__partitioner__rack__aware="true", kafka__client__rack="a")
    assert problem == "Option 'clientRackEnv' cannot be combined with kafka.client.rack. Remove one of them."


@pytest.mark.parametrize("name", ["", "$ZONE", "${ZONE}", "MY ZONE", "1ZONE"])
def test_rejects_text_that_names_no_variable(name: str) -> None:
    (problem,) = problems(clientRackEnv=name, kafka__partitioner__rack__aware="true")
    assert "'clientRackEnv' must be the name of an environment variable, such as AVAILABILITY_ZONE" in problem


def test_rejects_rack_aware_partitioner_without_any_rack() -> None:
    (problem,) = problems(kafka__partitioner__rack__aware="true")
    assert "kafka.partitioner.rack.aware is true, so kafka.client.rack must be set" in problem


@pytest.mark.parametrize("rack", [{"kafka__client__rack": "a"}, {"clientRackEnv": "ZONE"}], ids=str)
def test_rejects_rack_awareness_if_spark_chooses_the_partitions(rack: dict[str, str]) -> None:
    (problem,) = problems(distribution="partition", kafka__partitioner__rack__aware="true", **rack)
    assert problem.startswith("Option 'distribution' is 'partition', so kafka.partitioner.rack.aware has no effect: ")


def test_accepts_rack_awareness_with_distribution_by_key() -> None:
    options = parse_options(NEEDED | RACK_AWARE | {"kafka.client.rack": "a", "distribution": "key"})
    assert options.producer_config().partitioner_rack_aware


@pytest.mark.parametrize(
    ("rack", "name"),
    [
        ({"kafka__client__rack": "a"}, "kafka.partitioner.rack.aware"),
        ({"clientRackEnv": "Z"}, "Option 'clientRackEnv'"),
    ],
)
def test_rejects_rack_awareness_with_round_robin_partitioner(rack: dict[str, str], name: str) -> None:
    classes = {"kafka__partitioner__class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"}
    (problem,) = problems(kafka__partitioner__rack__aware="true", **classes, **rack)
    expected = "has no effect, because kafka.partitioner.class is RoundRobinPartitioner. Remove one of them."
    assert problem == f"{name} {expected}"


def test_logs_rack_without_rack_aware_partitioner_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            parse_options(NEEDED | {"kafka.client.rack": "a"})
    assert caplog.messages == ["kafka.client.rack has no effect unless kafka.partitioner.rack.aware is true."]
