"""Rows of a call that cannot be sent: each is reported once, with an error that names the remedy."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError, RecordTooLargeError
from spark_kafka_sink.producer.batching.grouping import HEADERS_TYPE
from spark_kafka_sink.producer.calls import FailedRows
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.record import MAX_RECORD_OVERHEAD_BYTES, compute_max_headers_bytes
from spark_kafka_sink.producer.rows import (
    build_rows,
    ensure_partitions_requested,
    find_missing_partition_failures,
    find_row_failures,
)
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from tests.producer.batching.accumulator_harness import TOPIC, cluster
from tests.producer.batching.named_call import NamedCall

SNAPSHOT = cluster([0, 1, 0])
CALL = NamedCall("call")


def config(**options: object) -> ProducerConfig:
    return ProducerConfig.parse(
        {"bootstrap.servers": "a:9092", **{name.replace("_", "."): value for name, value in options.items()}}
    )


def missing(partition: int | ArrowColumn, count: int, snapshot: ClusterSnapshot = SNAPSHOT) -> dict[int, str]:
    """Return the errors of the rows whose partition is missing, by row index."""
    rows = build_rows(CALL, RecordColumns(pa.array([b"v"] * count)), partition)
    return errors_by_row(find_missing_partition_failures(TOPIC, rows, snapshot, partition))


def errors_by_row(found: list[FailedRows]) -> dict[int, str]:
    return {row: str(bad.error) for bad in found for row in bad.row_indices.tolist()}


def test_reports_each_invalid_or_too_large_row_once() -> None:
    values = pa.array([b"v", b"v" * 2_000, b"v", b"v" * 2_000])
    timestamps = pa.array([1, -5, -5, 1], pa.int64())
    rows = build_rows(CALL, RecordColumns(values, timestamp=timestamps), pa.array([0, 1, 2, 0]))
    found = find_row_failures(TOPIC, rows, config(max_request_size=1_000))
    assert {type(bad.error): bad.row_indices.tolist() for bad in found} == {
        InvalidRecordError: [1, 2],
        RecordTooLargeError: [3],
    }
    left = rows.exclude(found)
    assert left.row_indices.tolist() == [0]
    assert left.requested_partitions is not None
    assert left.requested_partitions.tolist() == [0]
    assert left.columns.value.to_pylist() == [b"v"]
    assert find_row_failures(TOPIC, left, config(max_request_size=1_000)) == []


def test_error_names_missing_partitions_and_partition_count() -> None:
    message = f"topic {TOPIC} has no partition {{}}: it has 3, numbered from 0."
    assert missing(pa.array([0, 3, 2, 17]), 4) == {1: message.format("3 or 17"), 3: message.format("3 or 17")}
    assert missing(12, 2) == {0: message.format("12"), 1: message.format("12")}
    assert missing(pa.array([-1, 2**40, None, 1]), 4) == {row: message.format("-1 or 1099511627776") for row in (0, 1)}
    assert missing(pa.array([2**64 - 1, 1], pa.uint64()), 2) == {0: message.format(2**64 - 1)}
    assert missing(pa.array([0, 1, 2, None]), 4) == missing(1, 2) == {}


def test_error_names_at_most_five_missing_partitions() -> None:
    assert "partition 3, 4, 5, 6, 7 or 15 others: it has 3" in missing(pa.array(range(3, 23)), 20)[0]


def test_reports_partition_missing_between_existing_ones() -> None:
    info = SNAPSHOT.topics[TOPIC]
    gap = replace(SNAPSHOT, topics={TOPIC: replace(info, partitions=(info.partitions[0], info.partitions[2]))})
    assert list(missing(pa.array([0, 1, 2]), 3, gap)) == [1]


@pytest.mark.parametrize("partition", [None, pa.array([0, None], pa.int32()), pa.nulls(2)])
def test_custom_partitioner_requires_partition_of_every_row(partition: ArrowColumn | None) -> None:
    columns = RecordColumns(pa.array([b"v", b"w"]))
    with pytest.raises(ConfigurationError, match="partitioner="):
        ensure_partitions_requested(build_rows(CALL, columns, partition))
    ensure_partitions_requested(build_rows(CALL, columns, pa.array([0, 9])))


@pytest.mark.parametrize("character", ["a", "é", "あ", "😀"])
def test_maximum_size_of_headers_covers_every_width_of_utf8(character: str) -> None:
    headers = [(character * 1_000, b"value"), (character, None)]
    columns = RecordColumns(pa.nulls(1, pa.binary()), headers=pa.array([headers], HEADERS_TYPE))
    (size,) = compute_record_size_bounds(columns).tolist()
    assert size <= MAX_RECORD_OVERHEAD_BYTES + compute_max_headers_bytes(headers)
