from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.client.metadata_merge import MAX_PARTITIONS, MergeResult, merge_response
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from tests.client.metadata_responses import ID_1, ID_2, metadata_response, partition, topic

EMPTY = MergeResult(ClusterSnapshot())


def merge(
    previous: MergeResult,
    response: MetadataResponse,
    *,
    version: int = 12,
    is_partial: bool = False,
    retain: Callable[[str], bool] = lambda name: True,
) -> MergeResult:
    return merge_response(
        previous.snapshot, previous.epochs, response, version=version, is_partial=is_partial, is_in_use=retain
    )


def leader(merged: MergeResult, name: str = "t", index: int = 0) -> tuple[int | None, int | None]:
    info = merged.snapshot.partition(name, index)
    return (None, None) if info is None else (info.leader, info.leader_epoch)


def test_merges_nodes_topics_and_leaders() -> None:
    merged = merge(EMPTY, metadata_response(topic("t", 3, topic_id=ID_1), nodes=2))
    snapshot = merged.snapshot
    assert dict(snapshot.nodes) == {0: Node(0, "b0", 9092), 1: Node(1, "b1", 9092)}
    assert snapshot.partition_count("t") == 3
    assert snapshot.leader("t", 2) == Node(0, "b0", 9092)
    assert (snapshot.topic_id("t"), snapshot.topic_name(ID_1)) == (ID_1, "t")
    assert (snapshot.cluster_id, snapshot.controller) == ("cluster", Node(0, "b0", 9092))
    assert not snapshot.is_bootstrap
    assert merged.has_changes


def test_snapshot_is_immutable() -> None:
    snapshot = merge(EMPTY, metadata_response(topic("t"))).snapshot
    with pytest.raises(TypeError):
        snapshot.topics["u"] = snapshot.topics["t"]  # type: ignore[index]
    with pytest.raises(TypeError):
        del snapshot.nodes[0]  # type: ignore[attr-defined]


def test_unknown_broker_is_no_leader() -> None:
    merged = merge(EMPTY, metadata_response(topic("t", [partition(0, leader=9), partition(1, leader=-1)])))
    assert merged.snapshot.leader("t", 0) is None
    assert merged.snapshot.leader("t", 1) is None
    assert merged.snapshot.partition_count("t") == 2


def test_sorts_partitions_and_allows_gaps() -> None:
    merged = merge(EMPTY, metadata_response(topic("t", [partition(4, 1), partition(0, 2), partition(2, 0)])))
    assert [info.index for info in merged.snapshot.topics["t"].partitions] == [0, 2, 4]
    assert leader(merged, index=4)[0] == 1
    assert merged.snapshot.partition("t", 1) is None


def test_ignores_duplicate_and_invalid_partition_indexes() -> None:
    numbers = (1, 0, 1, -5, MAX_PARTITIONS, 2**31 - 1)
    merged = merge(EMPTY, metadata_response(topic("t", [partition(index, leader=1) for index in numbers])))
    assert [info.index for info in merged.snapshot.topics["t"].partitions] == [0, 1]


def test_ignores_older_leader_epoch() -> None:
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)], topic_id=ID_1)))
    stale = merge(known, metadata_response(topic("t", [partition(0, 2, epoch=9)], topic_id=ID_1)))
    assert leader(stale) == (1, 10)
    assert not stale.has_changes
    assert leader(merge(stale, metadata_response(topic("t", [partition(0, 2, epoch=11)], topic_id=ID_1)))) == (2, 11)


def test_same_leader_epoch_is_no_change() -> None:
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)])))
    repeated = merge(known, metadata_response(topic("t", [partition(0, 1, epoch=10)])))
    assert leader(repeated) == (1, 10)
    assert not repeated.has_changes


def test_topic_that_gets_its_first_id_may_start_with_new_epochs() -> None:
    """It may have been recreated while the brokers were upgraded."""
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)])))
    assert leader(merge(known, metadata_response(topic("t", [partition(0, 2, epoch=0)], topic_id=ID_1)))) == (2, 0)


def test_topic_without_id_in_a_response_keeps_its_epochs() -> None:
    """During an upgrade, some brokers still send no ids."""
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)], topic_id=ID_1)))
    without_id = merge(known, metadata_response(topic("t", [partition(0, 2, epoch=11)])))
    assert leader(without_id) == (2, 11)
    assert leader(merge(without_id, metadata_response(topic("t", [partition(0, 1, epoch=10)], topic_id=ID_1)))) == (
        2,
        11,
    )


def test_recreated_topic_starts_with_new_epochs() -> None:
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)], topic_id=ID_1)))
    recreated = merge(known, metadata_response(topic("t", [partition(0, 2, epoch=0)], topic_id=ID_2)))
    assert leader(recreated) == (2, 0)
    assert recreated.snapshot.topic_id("t") == ID_2
    assert recreated.snapshot.topic_name(ID_1) is None


def test_keeps_epochs_while_topic_is_missing() -> None:
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)], topic_id=ID_1)))
    gone = merge(known, metadata_response(topic("t", 0, error=error_codes.UNKNOWN_TOPIC_OR_PARTITION)))
    assert gone.snapshot.partition_count("t") is None
    back = merge(gone, metadata_response(topic("t", [partition(0, 2, epoch=12)], topic_id=ID_1)))
    assert leader(back) == (2, 12)
    recreated = merge(gone, metadata_response(topic("t", [partition(0, 2, epoch=0)], topic_id=ID_2)))
    assert leader(recreated) == (2, 0)


def test_accepts_lower_epoch_of_returned_topic_without_topic_ids() -> None:
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)])))
    gone = merge(known, metadata_response(topic("t", 0, error=error_codes.UNKNOWN_TOPIC_OR_PARTITION)))
    back = merge(gone, metadata_response(topic("t", [partition(0, 2, epoch=0)])))
    assert leader(back) == (2, 0), "without topic ids the epoch cannot be compared"


def test_ignores_epochs_of_old_brokers() -> None:
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=10)])))
    old = merge(known, metadata_response(topic("t", [partition(0, 2, epoch=5)])), version=8)
    assert leader(old) == (2, None)
    assert old.epochs == {}


def test_drops_topic_id_after_downgrade() -> None:
    known = merge(EMPTY, metadata_response(topic("t", topic_id=ID_1)))
    downgraded = merge(known, metadata_response(topic("t")))
    assert downgraded.snapshot.topic_id("t") is None


def test_partial_response_keeps_other_topics() -> None:
    known = merge(EMPTY, metadata_response(topic("a", 2, topic_id=ID_1), topic("b")))
    next_merge = merge(known, metadata_response(topic("b", 5), topic("c"), nodes=1), is_partial=True)
    assert {name: next_merge.snapshot.partition_count(name) for name in "abc"} == {"a": 2, "b": 5, "c": 1}
    assert next_merge.snapshot.topic_id("a") == ID_1
    assert list(next_merge.snapshot.nodes) == [0], "each response contains all brokers"


def test_full_response_replaces_topics() -> None:
    known = merge(EMPTY, metadata_response(topic("a"), topic("b")))
    assert set(merge(known, metadata_response(topic("b"))).snapshot.topics) == {"b"}


def test_drops_topics_that_are_not_retained() -> None:
    known = merge(EMPTY, metadata_response(topic("a"), topic("b")))
    for response in (metadata_response(topic("a"), topic("b")), metadata_response(topic("b"))):
        merged = merge(known, response, is_partial=True, retain=lambda name: name == "b")
        assert set(merged.snapshot.topics) == {"b"}
        assert set(merged.epochs) == {("b", 0)}


@pytest.mark.parametrize(
    ("error", "is_kept", "needs_refresh"),
    [
        (error_codes.LEADER_NOT_AVAILABLE, True, True),
        (error_codes.REQUEST_TIMED_OUT, True, False),
        (error_codes.UNKNOWN_TOPIC_OR_PARTITION, False, True),
        (error_codes.TOPIC_AUTHORIZATION_FAILED, False, False),
        (error_codes.INVALID_TOPIC_EXCEPTION, False, False),
    ],
)
def test_keeps_partitions_of_topic_with_temporary_error(error: int, is_kept: bool, needs_refresh: bool) -> None:
    known = merge(EMPTY, metadata_response(topic("t", [partition(0, 1, epoch=3)], topic_id=ID_1)))
    merged = merge(known, metadata_response(topic("t", 0, error=error)))
    assert merged.snapshot.topics["t"].error_code == error
    assert merged.snapshot.partition_count("t") == (1 if is_kept else None)
    assert merged.snapshot.topic_id("t") == (ID_1 if is_kept else None)
    assert merged.needs_refresh is needs_refresh


@pytest.mark.parametrize(
    ("error", "needs_refresh"),
    [(error_codes.LEADER_NOT_AVAILABLE, True), (error_codes.REPLICA_NOT_AVAILABLE, True), (0, False)],
)
def test_requests_refresh_for_partition_without_leader(error: int, needs_refresh: bool) -> None:
    merged = merge(EMPTY, metadata_response(topic("t", [partition(0, -1, epoch=4, error=error), partition(1)])))
    assert merged.needs_refresh is needs_refresh
    assert leader(merged) == (None, 4)
