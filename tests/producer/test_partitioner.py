"""Partitioner: like the Java client's for keys, sticky and adaptive for other rows, one column at a time."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2 as reference

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.errors import MetadataTimeoutError, SchemaError
from spark_kafka_sink.producer import partitioner as partitioner_module
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.partitioner import (
    INVALID_PARTITION,
    UNSPECIFIED_PARTITION,
    Partitioner,
    PartitionLoads,
    parse_requested_partitions,
)
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns
from tests.producer.batching.accumulator_harness import TOPIC, cluster

SNAPSHOT = cluster([0, 1] * 6)
ROOM = 1000
"""Bytes for records in a batch."""


def expected(key: bytes, count: int) -> int:
    return int((reference(key) & 0x7FFF_FFFF) % count)


def partitioner(**options: object) -> Partitioner:
    given_ = {"bootstrap.servers": "a:9092", "batch.size": ROOM + 61}
    given_.update({name.replace("_", "."): value for name, value in options.items()})
    return Partitioner(ProducerConfig.parse(given_), random.Random(5))


def assign(  # noqa: PLR0913 - what a test may vary, each by its name
    instance: Partitioner,
    keys: list[bytes | None] | pa.Array | int,
    explicit: int | ArrowColumn | None = None,
    *,
    size: int = 100,
    snapshot: ClusterSnapshot = SNAPSHOT,
    loads: PartitionLoads | None = None,
    topic: str = TOPIC,
) -> list[int]:
    key = None if isinstance(keys, int) else keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())
    count = keys if isinstance(keys, int) else len(keys)
    columns = RecordColumns(pa.nulls(count, pa.binary()), key)
    sizes = np.full(count, size, np.int64)
    result = instance.assign(
        topic, columns, sizes, parse_requested_partitions(explicit, count), snapshot, lambda _: loads
    )
    assert result.dtype == np.int32
    return result.tolist()  # type: ignore[no-any-return]


# -- keys -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.string_view(), pa.binary_view()]
)
def test_hashes_keys_of_every_arrow_type(kind: pa.DataType) -> None:
    texts = ["", "a", "key-%s", "ü", "x" * 300, "abcd"]
    data = [text if "string" in str(kind) else text.encode() for text in texts]
    keys = pa.array(data, kind)
    expected_partitions = [expected(text.encode(), 12) for text in texts]
    instance = partitioner()
    assert assign(instance, keys) == expected_partitions
    assert assign(instance, keys.slice(2, 3)) == expected_partitions[2:5]


def test_hashes_empty_key_but_not_null_key() -> None:
    instance = partitioner()
    assigned = assign(instance, [b"", None, b"", None])
    assert assigned[0] == assigned[2] == expected(b"", 12)
    assert assigned[1] == assigned[3]


def test_keys_between_null_keys_are_hashed_as_without_them() -> None:
    numbers = random.Random(3)
    keys = [numbers.randbytes(numbers.choice([12, 12, 7])) if numbers.random() < 0.6 else None for _ in range(40_000)]
    for kind in (pa.binary(), pa.large_binary()):
        assigned = assign(partitioner(), pa.array(keys, kind).slice(7))
        assert [p for p, key in zip(assigned, keys[7:], strict=True) if key is not None] == [
            expected(key, 12) for key in keys[7:] if key is not None
        ]


def test_key_determines_partition_although_it_has_no_leader() -> None:
    snapshot = cluster([None] * 12)
    assert assign(partitioner(), [b"k"], snapshot=snapshot) == [expected(b"k", 12)]


def test_keys_in_several_chunks_are_all_hashed() -> None:
    keys = pa.array([b"%d" % i for i in range(40_000)])
    assert assign(partitioner(), keys) == [expected(key, 12) for key in keys.to_pylist()]


def test_keys_can_be_ignored() -> None:
    assert len(set(assign(partitioner(partitioner_ignore_keys=True), [b"%d" % i for i in range(8)]))) == 1


# -- explicit partitions ----------------------------------------------------------------------------------------------
def test_uses_requested_partition_and_hashes_keys_of_other_rows() -> None:
    explicit = pa.array([3, None, 11, None], pa.int32())
    assigned = assign(partitioner(), [b"a", b"b", b"c", b"d"], explicit)
    assert assigned == [3, expected(b"b", 12), 11, expected(b"d", 12)]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()])
def test_explicit_partitions_may_be_integers_of_any_type(kind: pa.DataType) -> None:
    named = pa.array([0, 11, 3, 3], kind)
    assert assign(partitioner(), 4, named) == [0, 11, 3, 3]
    assert assign(partitioner(), 3, named.slice(1)) == [11, 3, 3]
    assert assign(partitioner(), 2, 5) == [5, 5]


@pytest.mark.parametrize(
    "column",
    [
        pa.chunked_array([pa.array([4, -1, 2**40], pa.int64()), pa.array([-(2**40), None], pa.int64())]),
        pa.array([4, 2**64 - 1, 2**63 + 5, 2**31, None], pa.uint64()),
    ],
)
def test_parses_out_of_range_partition_as_invalid_and_null_as_unspecified(column: ArrowColumn) -> None:
    named = parse_requested_partitions(column, 5)
    assert named is not None
    assert named.tolist() == [4, INVALID_PARTITION, INVALID_PARTITION, INVALID_PARTITION, UNSPECIFIED_PARTITION]
    for alone in (-1, 2**31):
        invalid = parse_requested_partitions(alone, 2)
        assert invalid is not None
        assert invalid.tolist() == [INVALID_PARTITION] * 2


def test_column_of_null_partitions_requests_none() -> None:
    assert assign(partitioner(), [b"a"], pa.nulls(1)) == [expected(b"a", 12)]


def test_explicit_partitions_and_null_keys_mix() -> None:
    assigned = assign(partitioner(), [None, b"b", None], pa.array([7, None, None], pa.int32()))
    assert assigned[:2] == [7, expected(b"b", 12)]
    assert 0 <= assigned[2] < 12


@pytest.mark.parametrize("column", [pa.array(["1"]), pa.array([1.0]), pa.array([1, 2])])
def test_rejects_partition_column_of_wrong_type_or_length(column: pa.Array) -> None:
    with pytest.raises(SchemaError, match="partition"):
        assign(partitioner(), [b"a"], column)


def test_error_names_unknown_topic() -> None:
    with pytest.raises(MetadataTimeoutError, match="topic t are not known"):
        assign(partitioner(), 1, snapshot=cluster([0], topic="other"))


# -- sticky -----------------------------------------------------------------------------------------------------------
def _runs(values: list[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def test_sticky_partition_changes_only_at_batch_boundaries() -> None:
    assigned = assign(partitioner(), 1000)
    assert all(len(run) % 10 == 0 for run in _runs(assigned))
    assert len(set(assigned)) == 12


def test_next_call_continues_batch_of_sticky_partition() -> None:
    instance = partitioner()
    first, second = assign(instance, 4), assign(instance, 10)
    assert first + second[:6] == [first[0]] * 10


def test_row_larger_than_a_batch_changes_sticky_partition() -> None:
    instance = partitioner()
    assigned = assign(instance, 50, size=5000)
    assert len(set(assigned)) > 6


def test_sticky_partitions_are_uniform_over_those_with_a_leader() -> None:
    snapshot = cluster([0, None, 1, None, 0, 1])
    counts = Counter(assign(partitioner(), 60_000, snapshot=snapshot))
    assert set(counts) == {0, 2, 4, 5}
    assert min(counts.values()) > 0.85 * 15_000


def test_without_any_leader_all_partitions_are_used() -> None:
    assert len(set(assign(partitioner(), 1000, snapshot=cluster([None] * 4)))) == 4


def test_leaves_sticky_partition_that_topic_no_longer_has() -> None:
    instance = partitioner()
    before = {assign(instance, 1)[0] for _ in range(1)}
    assert before <= set(range(12))
    assert assign(instance, 1, snapshot=cluster([0])) == [0]


def test_longer_queues_get_fewer_rows() -> None:
    loads = PartitionLoads([0, 1, 2], [0, 3, 1], 3)
    counts = Counter(assign(partitioner(), 120_000, snapshot=cluster([0, 0, 0]), loads=loads))
    shares = [counts[i] / 120_000 for i in range(3)]
    assert np.allclose(shares, [4 / 8, 1 / 8, 3 / 8], atol=0.03)


def test_queues_of_equal_length_are_served_uniformly() -> None:
    loads = PartitionLoads([0, 1, 2], [5, 5, 5], 3)
    counts = Counter(assign(partitioner(), 60_000, snapshot=cluster([0, 0, 0]), loads=loads))
    assert np.allclose([counts[i] / 60_000 for i in range(3)], 1 / 3, atol=0.03)


def test_partitions_excluded_from_loads_get_no_rows() -> None:
    loads = PartitionLoads([0, 2], [1, 1], 3)
    assert set(assign(partitioner(), 1000, snapshot=cluster([0, 0, 0]), loads=loads)) == {0, 2}
    none_left = PartitionLoads([], [], 3)
    assert set(assign(partitioner(), 1000, snapshot=cluster([0, 0, 0]), loads=none_left)) == {0, 1, 2}


def test_adaptive_partitioning_can_be_switched_off() -> None:
    instance = partitioner(partitioner_adaptive_partitioning_enable=False)
    loads = PartitionLoads([0], [0], 3)
    assert set(assign(instance, 1000, snapshot=cluster([0, 0, 0]), loads=loads)) == {0, 1, 2}


def test_sticky_partition_is_separate_for_each_topic() -> None:
    instance = partitioner()
    other = cluster([0] * 12, topic="other")
    both = ClusterSnapshot(nodes=SNAPSHOT.nodes, topics={**SNAPSHOT.topics, **other.topics})
    first = assign(instance, 1, snapshot=both)
    for _ in range(30):
        assign(instance, 1, snapshot=both, topic="other")
    assert assign(instance, 1, snapshot=both) == first


def test_round_robin_ignores_keys_and_partitions_without_leader() -> None:
    instance = partitioner(partitioner_class="RoundRobinPartitioner")
    snapshot = cluster([0, None, 1])
    assert assign(instance, [b"k"] * 5, snapshot=snapshot) == [0, 2, 0, 2, 0]
    assert assign(instance, [b"k"], snapshot=snapshot) == [2]


# -- racks ------------------------------------------------------------------------------------------------------------
RACKS = {0: "a", 1: "b", 2: "c"}


def rack_cluster(leaders: Sequence[int | None], racks: Mapping[int, str | None] = RACKS) -> ClusterSnapshot:
    """Build a snapshot of a topic with these leaders on nodes in these racks."""
    nodes = {node: Node(node, f"host{node}", 9092, rack) for node, rack in racks.items()}
    return replace(cluster(leaders), nodes=nodes)


def rack_partitioner(rack: str = "b", **options: object) -> Partitioner:
    return partitioner(partitioner_rack_aware=True, client_rack=rack, **options)


def test_rows_without_key_stay_in_the_rack_of_the_client() -> None:
    snapshot = rack_cluster([0, 1, 2, 1, 0, None])
    counts = Counter(assign(rack_partitioner("b"), 20_000, snapshot=snapshot))
    assert set(counts) == {1, 3}
    assert min(counts.values()) > 0.85 * 10_000


@pytest.mark.parametrize("racks", [RACKS, dict.fromkeys(RACKS)], ids=["other racks", "no racks"])
def test_uses_all_racks_if_no_leader_is_in_the_rack_of_the_client(racks: Mapping[int, str | None]) -> None:
    snapshot = rack_cluster([0, 1, 2, None], racks)
    assert set(assign(rack_partitioner("elsewhere"), 1000, snapshot=snapshot)) == {0, 1, 2}


def test_ignores_racks_unless_the_partitioner_is_rack_aware() -> None:
    snapshot = rack_cluster([0, 1, 2])
    assert set(assign(partitioner(client_rack="b"), 1000, snapshot=snapshot)) == {0, 1, 2}


def test_rack_affects_neither_keys_nor_requested_partitions() -> None:
    snapshot = rack_cluster([0, 1, 2])
    keys: list[bytes | None] = [b"a", b"b", b"c", b"d"]
    assert assign(rack_partitioner(), keys, snapshot=snapshot) == [expected(key or b"", 3) for key in keys]
    assert assign(rack_partitioner(), 2, pa.array([0, 2]), snapshot=snapshot) == [0, 2]


@pytest.mark.parametrize(
    ("racks", "known"), [({0: "b", 1: "a", 2: "b"}, "a, b"), (dict.fromkeys(RACKS), "none")], ids=["others", "none"]
)
def test_warns_once_of_a_rack_that_no_broker_has(
    racks: Mapping[int, str | None], known: str, caplog: pytest.LogCaptureFixture
) -> None:
    instance = rack_partitioner("elsewhere")
    with caplog.at_level(logging.WARNING):
        for topic in ("t", "u"):
            snapshot = rack_cluster([0, 1, 2], racks)
            snapshot = replace(snapshot, topics={topic: snapshot.topics[TOPIC]})
            assign(instance, 10, snapshot=snapshot, topic=topic)
    (message,) = caplog.messages
    assert "No broker has the rack 'elsewhere' set in client.rack, " in message
    assert f"The racks of the brokers are: {known}. " in message


def test_logs_nothing_for_a_rack_with_a_broker_but_without_leaders(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assign(rack_partitioner("b"), 10, snapshot=rack_cluster([0, 2]))
    assert not caplog.messages


def test_rack_applies_to_keys_that_are_ignored() -> None:
    snapshot = rack_cluster([0, 1, 2])
    assert set(assign(rack_partitioner(partitioner_ignore_keys=True), [b"a", b"b"], snapshot=snapshot)) == {1}


def test_follows_leaders_into_the_rack_of_the_client() -> None:
    instance = rack_partitioner("b")
    assert set(assign(instance, 100, snapshot=rack_cluster([0, 1]))) == {1}
    assigned = assign(instance, 100, snapshot=rack_cluster([1, 0]))
    assert set(assigned[-50:]) == {0}, "the batch that was begun may be finished first"


def _assign_with_loads(loads: Mapping[tuple[int, ...], PartitionLoads | None], rows: int = 12_000) -> Counter[int]:
    """Assign rows from rack b, where two of four partitions have their leader, with the loads of each candidate set."""
    columns = RecordColumns(pa.nulls(rows, pa.binary()))
    sizes = np.full(rows, 100, np.int64)
    snapshot = rack_cluster([0, 1, 1, 2])
    instance = rack_partitioner("b")
    return Counter(instance.assign(TOPIC, columns, sizes, None, snapshot, lambda topics: loads[tuple(topics)]).tolist())


def test_longer_queues_get_fewer_rows_within_the_rack() -> None:
    counts = _assign_with_loads({(1, 2): PartitionLoads([1, 2], [0, 2], 2)})
    assert set(counts) == {1, 2}
    assert counts[1] / 12_000 == pytest.approx(3 / 4, abs=0.05)


def test_avoids_unavailable_broker_within_the_rack() -> None:
    assert set(_assign_with_loads({(1, 2): PartitionLoads([2], [0], 2)})) == {2}


def test_leaves_the_rack_while_all_of_its_brokers_are_unavailable() -> None:
    unavailable = PartitionLoads([], [], 2)
    assert set(_assign_with_loads({(1, 2): unavailable, (0, 3): None})) == {0, 3}
    counts = _assign_with_loads({(1, 2): unavailable, (0, 3): PartitionLoads([0, 3], [0, 2], 2)})
    assert counts[0] / 12_000 == pytest.approx(3 / 4, abs=0.05)


# -- threads ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("named", ["", "RoundRobinPartitioner"])
def test_partitioner_state_changes_only_under_the_lock(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = partitioner(partitioner_class=named)
    changed: list[tuple[str, bool]] = []

    class Watched(partitioner_module._TopicState):
        def __setattr__(self, name: str, value: object) -> None:
            changed.append((name, instance._lock.locked()))
            super().__setattr__(name, value)

    monkeypatch.setattr(partitioner_module, "_TopicState", Watched)
    for _ in range(3):
        assign(instance, 1, size=10)
        assign(instance, 4, size=10)
    assert changed
    assert [name for name, locked in changed if not locked] == []
