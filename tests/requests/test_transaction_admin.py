"""Requests to coordinators are retried until they respond, while coordinators move and connections fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from spark_kafka_sink.broker.context import RequestContext
from spark_kafka_sink.broker.handlers import load_handler
from spark_kafka_sink.errors import BrokerError, DecodeError, KafkaSinkError, ProducerFencedError
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsResponseTopicData
from spark_kafka_sink.requests.transaction_admin import (
    describe_transactions,
    end_transactions,
    init_producer_id,
    list_transactional_ids,
)
from spark_kafka_sink.requests.transaction_description import ONGOING
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import broker as broker
from tests.exactly_once.embedded_query import connect_client, list_open_ids, read_values, rows
from tests.exactly_once.open_transactions import prepared as prepared
from tests.exactly_once.open_transactions import transactional_ids
from tests.fake_system import FakeSystem
from tests.simulated_cluster import SimulatedCluster


@pytest.mark.parametrize("commit", [True, False])
def test_ends_transactions_together_and_repeatedly(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity], commit: bool
) -> None:
    with connect_client(broker) as client:
        assert end_transactions(client, prepared, commit=commit) == {}
        assert end_transactions(client, prepared, commit=commit) == {}
    assert read_values(broker) == (rows(0) if commit else [])


@pytest.mark.parametrize("applied", [True, False])
def test_retries_end_transaction_after_lost_response(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity], applied: bool
) -> None:
    broker.control.when(api=ApiKey.END_TXN).drop(execute_first=applied)
    with connect_client(broker) as client:
        assert end_transactions(client, prepared, commit=True) == {}
    assert read_values(broker) == rows(0)


@pytest.mark.parametrize(
    "code",
    [
        error_codes.CONCURRENT_TRANSACTIONS,
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
    ],
)
@pytest.mark.parametrize("api", [ApiKey.END_TXN, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.INIT_PRODUCER_ID])
def test_retries_busy_or_moved_coordinator(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity], api: ApiKey, code: int
) -> None:
    broker.control.when(api=api, times=3).fail(code)
    with connect_client(broker) as client:
        assert sorted(describe_transactions(client, transactional_ids(prepared))) == transactional_ids(prepared)
        assert end_transactions(client, prepared, commit=True) == {}
        assert init_producer_id(client, prepared[0].transactional_id, 60_000).producer_id == prepared[0].producer_id
    assert read_values(broker) == rows(0)


@pytest.mark.parametrize("code", [error_codes.COORDINATOR_LOAD_IN_PROGRESS, error_codes.COORDINATOR_NOT_AVAILABLE])
def test_lists_open_transactions_of_all_brokers_after_retries(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity], code: int
) -> None:
    broker.control.when(api=ApiKey.LIST_TRANSACTIONS, times=3).fail(code)
    broker.control.when(api=ApiKey.FIND_COORDINATOR).fail(error_codes.COORDINATOR_NOT_AVAILABLE)
    assert list_open_ids(broker) == transactional_ids(prepared)


def test_lists_transactions_that_move_to_broker_already_listed(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    def move(pause_ms: float) -> None:
        for name in transactional_ids(prepared):
            broker.control.move_coordinator(name, 0)
        pause(pause_ms)

    for name in transactional_ids(prepared):
        broker.control.move_coordinator(name, 1)
    broker.control.when(api=ApiKey.LIST_TRANSACTIONS, node=1).fail(error_codes.COORDINATOR_NOT_AVAILABLE)
    with connect_client(broker) as client:
        pause = client.pause
        monkeypatch.setattr(client, "pause", move)
        assert list_transactional_ids(client, ONGOING) == transactional_ids(prepared)


def test_finds_coordinators_that_move_between_calls(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity]
) -> None:
    with connect_client(broker) as client:
        describe_transactions(client, transactional_ids(prepared))
        for node in (0, 1):
            for name in transactional_ids(prepared):
                broker.control.move_coordinator(name, node)
            assert sorted(describe_transactions(client, transactional_ids(prepared))) == transactional_ids(prepared)
        assert end_transactions(client, prepared, commit=True) == {}
    assert read_values(broker) == rows(0)


def test_finds_new_coordinator_when_broker_stops(broker: EmbeddedBroker, prepared: list[TransactionIdentity]) -> None:
    with connect_client(broker) as client:
        describe_transactions(client, transactional_ids(prepared))
        for name in transactional_ids(prepared):
            broker.control.move_coordinator(name, 1)
        describe_transactions(client, transactional_ids(prepared))
        broker.control.stop_node(1)
        assert end_transactions(client, prepared, commit=True) == {}
    assert read_values(broker) == rows(0)


def test_does_not_end_transaction_of_newer_epoch(broker: EmbeddedBroker, prepared: list[TransactionIdentity]) -> None:
    with connect_client(broker) as client:
        newer = init_producer_id(client, prepared[0].transactional_id, 60_000)
        errors = end_transactions(client, prepared[:1], commit=False)
        assert isinstance(errors[prepared[0].transactional_id], ProducerFencedError)
        assert (
            describe_transactions(client, transactional_ids(prepared))[prepared[0].transactional_id].id_and_epoch
            == newer
        )
        with pytest.raises(ProducerFencedError):
            init_producer_id(client, prepared[0].transactional_id, 60_000, prepared[0].id_and_epoch)


def test_description_omits_id_unknown_to_coordinator(broker: EmbeddedBroker) -> None:
    with connect_client(broker) as client:
        assert describe_transactions(client, ["p-1-0-0"]) == {}


def test_unauthorized_description_is_an_error(broker: EmbeddedBroker) -> None:
    """An unknown driver id would mean that there is no driver."""
    code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    broker.control.when(api=ApiKey.DESCRIBE_TRANSACTIONS, times=None).fail(code)
    with connect_client(broker) as client, pytest.raises(BrokerError, match=r"transactional id p-driver.*Grant"):
        describe_transactions(client, ["p-driver"])


def test_call_without_response_times_out(broker: EmbeddedBroker, prepared: list[TransactionIdentity]) -> None:
    broker.control.when(api=ApiKey.END_TXN, times=None).drop()
    config = ProducerConfig.parse({"bootstrap.servers": broker.bootstrap_servers}).client_config()
    with (
        create_client(config, timeout_ms=50) as client,
        pytest.raises(KafkaSinkError, match="timed out after 50 ms"),
    ):
        end_transactions(client, prepared, commit=True)


def test_description_sanitizes_state_and_topics(
    broker: EmbeddedBroker, prepared: list[TransactionIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = load_handler(ApiKey.DESCRIBE_TRANSACTIONS).handle

    def add_control_characters(context: RequestContext, request: Any) -> Any:
        response: Any = handle(context, request)
        for row in response.transaction_states:
            row.transaction_state += "\nforged"
            for topic in row.topics:
                topic.topic += "\x1b[31m"
        return response

    monkeypatch.setattr(load_handler(ApiKey.DESCRIBE_TRANSACTIONS), "handle", add_control_characters)
    with connect_client(broker) as client:
        text = str(describe_transactions(client, [identity.transactional_id for identity in prepared]))
    assert "forged" in text
    assert "\\n" not in text
    assert "\\x1b" not in text


def test_cost_of_description_is_linear_in_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A response contains all ids of a coordinator, each with all partitions that its task has written to."""
    partitions = 50
    handle = load_handler(ApiKey.DESCRIBE_TRANSACTIONS).handle

    def add_many_partitions(context: RequestContext, request: Any) -> Any:
        response: Any = handle(context, request)
        for row in response.transaction_states:
            row.error_code, row.topics = (
                0,
                [DescribeTransactionsResponseTopicData(topic=f"t{number}") for number in range(partitions)],
            )
        return response

    monkeypatch.setattr(load_handler(ApiKey.DESCRIBE_TRANSACTIONS), "handle", add_many_partitions)
    system = FakeSystem()
    cluster = SimulatedCluster(system, topics={"t": 1})
    config = ProducerConfig.parse({"bootstrap.servers": cluster.bootstrap_servers}).client_config()
    with create_client(config, system=system) as client:
        client.wait_for_topic("t")
        describe_transactions(client, ["warm"])
        transactional_ids = [f"id-{number}" for number in range(80)]
        calls = [
            count_function_calls(partial(describe_transactions, client, some))
            for some in (transactional_ids[:20], transactional_ids)
        ]
    assert calls[1] < 5 * calls[0]


def count_function_calls(work: Callable[[], object]) -> int:
    """Count the calls of Python functions."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_rejects_negative_producer_id(broker: EmbeddedBroker) -> None:
    broker.cluster.coordinator.next_producer_id = -5
    with connect_client(broker) as client, pytest.raises(DecodeError, match="the producer id -5 with the epoch 0"):
        init_producer_id(client, "x", 60_000)
