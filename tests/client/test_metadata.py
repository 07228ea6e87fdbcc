from __future__ import annotations

import threading
from random import Random

import pytest

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import Metadata, create_metadata
from spark_kafka_sink.client.metadata_merge import LeaderHint
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    ConfigurationError,
)
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from tests.client.metadata_responses import ID_1, ID_2, metadata_response, partition, topic
from tests.fake_system import FakeSystem
from tests.waiting import WAIT_TIMEOUT_SECONDS

MAX_AGE_MS = 300_000
IDLE_MS = 60_000
CONFIG = ClientConfig(("b:9092",), metadata_max_age_ms=MAX_AGE_MS, metadata_max_idle_ms=IDLE_MS)


@pytest.fixture
def system() -> FakeSystem:
    return FakeSystem()


@pytest.fixture
def metadata(system: FakeSystem) -> Metadata:
    return Metadata([Node(-1, "b", 9092)], CONFIG, system=system, rng=Random(5))


def receive(metadata: Metadata, response: MetadataResponse, now_ms: float, *, version: int = 12) -> None:
    metadata.update(metadata.build_query(now_ms), response, version, now_ms)


def add_known_topics(metadata: Metadata, *topics: str, now_ms: float = 0.0) -> None:
    for name in topics:
        metadata.add_topic(name, now_ms)
    receive(metadata, metadata_response(*(topic(name) for name in topics)), now_ms)


def test_starts_with_bootstrap_nodes_and_needs_update(metadata: Metadata) -> None:
    assert metadata.snapshot.is_bootstrap
    assert list(metadata.snapshot.nodes.values()) == [Node(-1, "b", 9092)]
    assert metadata.time_to_next_update_ms(0) == 0
    assert metadata.snapshot.partition_count("t") is None


def test_no_update_is_due_until_maximum_age(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    assert metadata.time_to_next_update_ms(0) == MAX_AGE_MS
    assert metadata.time_to_next_update_ms(MAX_AGE_MS - 1) == 1
    assert metadata.time_to_next_update_ms(MAX_AGE_MS) == 0
    assert not metadata.build_query(MAX_AGE_MS).is_partial


def test_requested_update_waits_for_backoff(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    version = metadata.request_update()
    assert 80 <= metadata.time_to_next_update_ms(0) <= 120
    assert metadata.time_to_next_update_ms(120) == 0
    receive(metadata, metadata_response(topic("t")), 200)
    assert metadata.version == version + 1


def test_failed_updates_back_off_exponentially(metadata: Metadata) -> None:
    now_ms = 0.0
    for expected in [100, 200, 400, 800, 1_000, 1_000]:
        metadata.record_update_failure(now_ms)
        delay = metadata.time_to_next_update_ms(now_ms)
        assert expected * 0.8 <= delay <= min(expected * 1.2, 1_000)
        now_ms += delay
    add_known_topics(metadata, "t", now_ms=now_ms)
    metadata.request_update()
    assert metadata.time_to_next_update_ms(now_ms) <= 120


def test_responses_without_changes_back_off_exponentially(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    now_ms = 0.0
    for expected in [100, 100, 200, 400, 800, 1_000, 1_000]:
        metadata.request_update()
        delay = metadata.time_to_next_update_ms(now_ms)
        assert expected * 0.8 <= delay <= min(expected * 1.2, 1_000)
        now_ms += delay
        receive(metadata, metadata_response(topic("t")), now_ms)


def test_changed_response_resets_backoff(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    now_ms = 0.0
    for _ in range(5):
        now_ms += 1_000
        receive(metadata, metadata_response(topic("t")), now_ms)
    receive(metadata, metadata_response(topic("t", [partition(0, 1, epoch=7)])), now_ms)
    metadata.request_update()
    assert metadata.time_to_next_update_ms(now_ms) <= 120


def test_request_update_can_reset_backoff_unless_updates_fail(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    for now_ms in range(1, 6):
        receive(metadata, metadata_response(topic("t")), now_ms)
    metadata.request_update()
    assert metadata.time_to_next_update_ms(5) > 500
    metadata.request_update(reset_backoff=True)
    assert metadata.time_to_next_update_ms(5) == 0
    metadata.record_update_failure(5)
    metadata.request_update(reset_backoff=True)
    assert metadata.time_to_next_update_ms(5) > 0, "failed updates back off despite the reset"


def test_periodic_refreshes_do_not_back_off(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    now_ms = 0.0
    for _ in range(8):
        now_ms += MAX_AGE_MS
        assert metadata.time_to_next_update_ms(now_ms) == 0
        receive(metadata, metadata_response(topic("t")), now_ms)
    metadata.request_update()
    assert metadata.time_to_next_update_ms(now_ms) <= 120


def test_requests_new_topic_immediately_and_alone(metadata: Metadata) -> None:
    add_known_topics(metadata, "a", "b")
    metadata.add_topic("c", 10)
    assert metadata.time_to_next_update_ms(10) == 0
    query = metadata.build_query(10)
    assert (query.topics, query.is_partial) == (("c",), True)
    metadata.update(query, metadata_response(topic("c", 4)), 12, 10)
    assert {name: metadata.snapshot.partition_count(name) for name in "abc"} == {"a": 1, "b": 1, "c": 4}
    assert metadata.time_to_next_update_ms(10) == MAX_AGE_MS - 10, (
        "a partial response does not refresh the other topics"
    )


def test_partial_query_becomes_full_when_full_update_is_due(metadata: Metadata) -> None:
    add_known_topics(metadata, "a")
    metadata.add_topic("b", 10)
    metadata.request_update()
    query = metadata.build_query(200)
    assert (set(query.topics), query.is_partial) == ({"a", "b"}, False)


def test_requests_topic_added_during_query_next(metadata: Metadata) -> None:
    metadata.add_topic("a", 0)
    query = metadata.build_query(0)
    metadata.add_topic("b", 1)
    metadata.update(query, metadata_response(topic("a")), 12, 2)
    assert metadata.time_to_next_update_ms(2) <= 120
    following = metadata.build_query(200)
    assert (following.topics, following.is_partial) == (("b",), True)
    metadata.update(following, metadata_response(topic("b")), 12, 200)
    assert metadata.time_to_next_update_ms(200) > 120
    assert metadata.snapshot.partition_count("a") == metadata.snapshot.partition_count("b") == 1


def test_retries_new_topic_with_error_in_full_query(metadata: Metadata) -> None:
    add_known_topics(metadata, "a")
    metadata.add_topic("b", 10)
    receive(metadata, metadata_response(topic("b", 0, error=error_codes.LEADER_NOT_AVAILABLE)), 10)
    assert metadata.time_to_next_update_ms(10) <= 120
    query = metadata.build_query(200)
    assert (set(query.topics), query.is_partial) == ({"a", "b"}, False)


def test_requests_topic_alone_only_while_it_is_new(metadata: Metadata) -> None:
    add_known_topics(metadata, "a")
    metadata.add_topic("b", 10)
    metadata.request_update_for_topic("b")
    assert metadata.build_query(10).is_partial
    receive(metadata, metadata_response(topic("b", 0, error=error_codes.UNKNOWN_TOPIC_OR_PARTITION)), 10)
    metadata.request_update_for_topic("b")
    assert not metadata.build_query(500).is_partial


def test_backs_off_for_new_topic_missing_from_responses(metadata: Metadata) -> None:
    add_known_topics(metadata, "a")
    now_ms = 10.0
    metadata.add_topic("b", now_ms)
    receive(metadata, metadata_response(), now_ms)
    for expected in [100, 200, 400, 800, 1_000]:
        metadata.request_update_for_topic("b")
        pause = metadata.time_to_next_update_ms(now_ms)
        assert expected * 0.8 <= pause <= min(expected * 1.2, 1_000)
        now_ms += pause
        receive(metadata, metadata_response(), now_ms)
    metadata.add_topic("c", now_ms)
    assert metadata.time_to_next_update_ms(now_ms) == 0, "another topic has not been requested yet"


def test_drops_unused_topic(metadata: Metadata) -> None:
    add_known_topics(metadata, "a", "b")
    metadata.add_topic("b", IDLE_MS - 1)
    receive(metadata, metadata_response(topic("a"), topic("b")), IDLE_MS)
    assert metadata.topics == {"b"}
    assert not metadata.contains_topic("a")
    assert metadata.snapshot.partition_count("a") is None
    assert metadata.snapshot.partition_count("b") == 1


def test_keeps_topic_that_was_never_in_a_response(metadata: Metadata) -> None:
    metadata.add_topic("slow", 0)
    query = metadata.build_query(0)
    metadata.update(query, metadata_response(), 12, IDLE_MS * 2)
    assert metadata.contains_topic("slow")


def test_query_controls_auto_topic_creation(system: FakeSystem, metadata: Metadata) -> None:
    metadata.add_topic("t", 0)
    assert metadata.build_query(0).build_request().allow_auto_topic_creation
    reader = Metadata([Node(-1, "b", 9092)], CONFIG, system=system, allow_auto_topic_creation=False)
    request = reader.build_query(0).build_request()
    assert not request.allow_auto_topic_creation
    assert request.topics == [], "null would request all topics of the cluster"


def test_keeps_all_topic_errors_and_raises_final_ones(metadata: Metadata) -> None:
    for name in "abcd":
        metadata.add_topic(name, 0)
    receive(
        metadata,
        metadata_response(
            topic("a", 0, error=error_codes.TOPIC_AUTHORIZATION_FAILED),
            topic("b", 0, error=error_codes.INVALID_TOPIC_EXCEPTION),
            topic("c", 0, error=error_codes.UNKNOWN_TOPIC_OR_PARTITION),
            topic("d"),
        ),
        0,
    )
    with pytest.raises(AuthorizationError, match="topic a"):
        metadata.raise_for_topic("a")
    with pytest.raises(BrokerError, match="topic b: INVALID_TOPIC_EXCEPTION"):
        metadata.raise_for_topic("b")
    metadata.raise_for_topic("c")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(metadata.topic_error("c"))
    assert metadata.topic_error("d") is None
    assert metadata.topic_error("never heard of") is None


def test_accepts_newer_leader_hint_of_known_broker(metadata: Metadata) -> None:
    metadata.add_topic("t", 0)
    receive(
        metadata, metadata_response(topic("t", [partition(index, 0, epoch=5) for index in range(6)], topic_id=ID_1)), 0
    )
    version = metadata.version
    changed = metadata.update_leaders(
        [
            LeaderHint("t", None, 0, leader_id=1, leader_epoch=6),
            LeaderHint("t", None, 1, leader_id=1, leader_epoch=5),
            LeaderHint("t", None, 2, leader_id=77, leader_epoch=6),
            LeaderHint("t", None, 3, leader_id=8, leader_epoch=6),
            LeaderHint("t", None, 4, leader_id=-1, leader_epoch=6),
            LeaderHint("t", None, 5, leader_id=1, leader_epoch=-1),
            LeaderHint("t", None, 99, leader_id=1, leader_epoch=6),
            LeaderHint("unknown", None, 0, leader_id=1, leader_epoch=6),
        ],
        [Node(8, "new", 9092)],
    )
    assert changed == {("t", 0), ("t", 3)}
    assert metadata.snapshot.leader("t", 0) == Node(1, "b1", 9092)
    assert metadata.snapshot.leader("t", 3) == Node(8, "new", 9092)
    assert [metadata.snapshot.leader("t", index) for index in (1, 2, 4, 5)] == [Node(0, "b0", 9092)] * 4
    assert metadata.snapshot.topic_id("t") == ID_1
    assert metadata.version == version, "a hint is not an update that calls wait for"
    receive(metadata, metadata_response(topic("t", [partition(0, 0, epoch=5)], topic_id=ID_1)), 10)
    assert metadata.snapshot.leader("t", 0) == Node(1, "b1", 9092), "an older response does not undo the hint"


def test_ignores_late_leader_hint_of_deleted_topic(metadata: Metadata) -> None:
    """Its epoch is greater than those of the recreated topic, so all responses about that one would seem too old."""
    metadata.add_topic("t", 0)
    receive(metadata, metadata_response(topic("t", [partition(0, 0, epoch=0)], topic_id=ID_2)), 0)
    assert metadata.update_leaders([LeaderHint("t", ID_1, 0, leader_id=1, leader_epoch=6)], []) == set()
    assert metadata.update_leaders([LeaderHint("t", ID_2, 0, leader_id=1, leader_epoch=1)], []) == {("t", 0)}


def test_ignores_leader_hint_without_epoch(metadata: Metadata) -> None:
    metadata.add_topic("t", 0)
    receive(metadata, metadata_response(topic("t", [partition(0, 0, epoch=-1)])), 0)
    assert metadata.update_leaders([LeaderHint("t", None, 0, leader_id=1, leader_epoch=-1)], []) == set()
    assert metadata.update_leaders([LeaderHint("t", None, 0, leader_id=1, leader_epoch=0)], []) == {("t", 0)}


def test_rebootstrap_drops_brokers_and_keeps_topics(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    metadata.rebootstrap()
    assert metadata.snapshot.is_bootstrap
    assert list(metadata.snapshot.nodes) == [-1]
    assert metadata.contains_topic("t")
    assert metadata.time_to_next_update_ms(1_000) == 0


def test_reads_snapshot_without_lock(metadata: Metadata) -> None:
    add_known_topics(metadata, "t")
    is_lock_held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with metadata._lock:
            is_lock_held.set()
            release.wait(WAIT_TIMEOUT_SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    is_lock_held.wait(WAIT_TIMEOUT_SECONDS)
    assert metadata.snapshot.partition_count("t") == 1
    assert metadata.version > 0
    assert holder.is_alive(), "the read waited for the lock"
    release.set()
    holder.join(WAIT_TIMEOUT_SECONDS)


def test_new_metadata_does_not_resolve_bootstrap_servers_with_resolve_timeout(system: FakeSystem) -> None:
    system.names["later"] = []
    metadata = create_metadata(ClientConfig(("later:9092",), bootstrap_resolve_timeout_ms=1), system=system)
    assert not metadata.snapshot.nodes
    assert metadata.snapshot.is_bootstrap


def test_new_metadata_rejects_unresolvable_bootstrap_server(system: FakeSystem) -> None:
    system.names["typo"] = []
    with pytest.raises(ConfigurationError, match="typo:9092"):
        create_metadata(ClientConfig(("typo:9092",)), system=system)
