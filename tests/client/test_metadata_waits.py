"""Waits for metadata: their ends and the errors of waits that time out."""

from __future__ import annotations

import threading
from random import Random

import pytest

from spark_kafka_sink.client.client_request import ConnectionLoss
from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import MAX_REPORTED_ADDRESSES, UNREACHABLE_REMEDY, Metadata
from spark_kafka_sink.errors import AuthenticationError, IllegalStateError, MetadataTimeoutError, ProducerClosedError
from tests.client.metadata_responses import metadata_response, topic
from tests.fake_system import FakeSystem
from tests.waiting import WAIT_TIMEOUT_SECONDS


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem()


@pytest.fixture
def metadata(system: FakeSystem) -> Metadata:
    return Metadata([Node(-1, "b", 9092)], ClientConfig(("b:9092",)), system=system, rng=Random(5))


def receive_response(metadata: Metadata) -> None:
    metadata.add_topic("t", 0)
    metadata.update(metadata.build_query(0), metadata_response(topic("t")), 12, 0)


def test_response_ends_wait(metadata: Metadata) -> None:
    version = metadata.request_update()
    receive_response(metadata)
    metadata.await_update(version, 0)


def test_response_in_another_thread_ends_wait(metadata: Metadata) -> None:
    version = metadata.request_update()
    waiter = threading.Thread(target=metadata.await_update, args=(version, 1e9))
    waiter.start()
    receive_response(metadata)
    waiter.join(WAIT_TIMEOUT_SECONDS)
    assert not waiter.is_alive()


def test_wait_converts_remaining_milliseconds_to_seconds(
    system: FakeSystem, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def pass_half_a_second(_: threading.Condition, seconds: float) -> None:
        waits.append(seconds)
        system.advance(500)

    monkeypatch.setattr(threading.Condition, "wait", pass_half_a_second)
    with pytest.raises(MetadataTimeoutError, match="within 1200 ms"):
        metadata.await_update(metadata.version, 1_200)
    assert waits == pytest.approx([1.2, 0.7, 0.2])


def test_wait_timeout_names_failed_addresses_and_reasons(metadata: Metadata) -> None:
    with pytest.raises(MetadataTimeoutError, match="No broker has responded"):
        metadata.await_update(metadata.version, 0)
    metadata.record_connection_failure(0, "b:9092 (10.0.0.1)", ConnectionLoss("refused once"))
    metadata.record_connection_failure(0, "b:9092 (10.0.0.2)", ConnectionLoss("timed out"))
    metadata.record_connection_failure(0, "b:9092 (10.0.0.1)", ConnectionLoss("refused again"))
    with pytest.raises(MetadataTimeoutError) as failure:
        metadata.await_update(metadata.version, 0)
    assert str(failure.value).endswith(
        "Tried: b:9092 (10.0.0.2): timed out; b:9092 (10.0.0.1): refused again. Check the host and port, that a broker "
        "listens there, and that no firewall blocks the connection."
    )
    assert "refused once" not in str(failure.value)
    receive_response(metadata)
    assert "refused" not in metadata.describe_connection_failures()


def test_wait_timeout_gives_remedies_of_failures(metadata: Metadata) -> None:
    for address in ("b:1", "b:2"):
        metadata.record_connection_failure(0, address, ConnectionLoss("no ticket", remedy="Run `kinit`."))
    assert metadata.describe_connection_failures() == "Tried: b:1: no ticket; b:2: no ticket. Run `kinit`."
    metadata.record_connection_failure(0, "b:3", ConnectionLoss("refused"))
    assert metadata.describe_connection_failures() == (
        f"Tried: b:1: no ticket; b:2: no ticket; b:3: refused. Run `kinit`. {UNREACHABLE_REMEDY}"
    )


def test_number_of_reported_addresses_is_limited(metadata: Metadata) -> None:
    for index in range(1_000):
        metadata.record_connection_failure(index, f"host{index}:1", ConnectionLoss("gone"))
    assert metadata.describe_connection_failures().count("gone") == MAX_REPORTED_ADDRESSES
    assert "host999" in metadata.describe_connection_failures()


def test_fatal_error_ends_waits_until_next_response(metadata: Metadata) -> None:
    metadata.set_fatal_error(AuthenticationError("wrong password"))
    for _ in range(2):
        with pytest.raises(AuthenticationError, match="wrong password"):
            metadata.await_update(metadata.version, 1e9)
    receive_response(metadata)
    metadata.await_update(metadata.version - 1, 0)


def test_fatal_error_ends_running_waits(metadata: Metadata) -> None:
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            metadata.await_update(metadata.version, 1e9)
        except AuthenticationError as error:
            failures.append(error)

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    metadata.set_fatal_error(AuthenticationError("wrong password"))
    for waiter in waiters:
        waiter.join(WAIT_TIMEOUT_SECONDS)
    assert len(failures) == 3, "the error ends all waits and not only the first"


def test_close_ends_waits_and_rejects_updates(metadata: Metadata) -> None:
    query = metadata.build_query(0)
    metadata.close()
    with pytest.raises(ProducerClosedError):
        metadata.await_update(metadata.version, 1e9)
    with pytest.raises(IllegalStateError):
        metadata.update(query, metadata_response(), 12, 0)
