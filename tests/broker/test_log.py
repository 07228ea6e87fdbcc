"""PartitionLog: storage of batches, and reads at each isolation level."""

from __future__ import annotations

import struct

import pytest

from spark_kafka_sink.broker import batch_validation
from spark_kafka_sink.broker.log import LogConfig, PartitionLog
from spark_kafka_sink.records.decoder import decode_batches
from spark_kafka_sink.records.header import parse_header
from tests.broker.wire_client import batch, record
from tests.records.batch_headers import build_header
from tests.simulated_cluster import stored_records


def test_stores_batch_unchanged_except_offset_and_leader_epoch() -> None:
    log = PartitionLog(LogConfig())
    data = batch(b"a", b"b")
    log.append(batch(b"first"), wall_ms=1)
    log.append(data, wall_ms=1, leader_epoch=3)
    stored = bytes(log.read(1, 10_000).batches[0])
    header = parse_header(stored)
    assert (header.base_offset, header.partition_leader_epoch) == (1, 3)
    assert (stored[8:12], stored[16:]) == (data[8:12], data[16:])


def test_log_append_time_replaces_record_timestamps() -> None:
    log = PartitionLog(LogConfig(uses_log_append_time=True))
    assert log.append(batch(b"a", b"b"), wall_ms=5000).append_time_ms == 5000
    (decoded,) = decode_batches(log.read(0, 10_000).batches[0])
    assert decoded.columns.column("timestamp").to_pylist() == [5000, 5000]


def test_reads_whole_batches_within_limit_and_at_least_one() -> None:
    log = PartitionLog(LogConfig())
    size = len(batch(b"a", b"b"))
    for _ in range(3):
        log.append(batch(b"a", b"b"), wall_ms=1)
    assert [parse_header(b).base_offset for b in log.read(0, 2 * size).batches] == [0, 2]
    assert [parse_header(b).base_offset for b in log.read(3, 1).batches] == [2], (
        "must begin with the batch that contains the offset"
    )
    assert not log.read(0, 1, min_one_batch=False).batches
    assert not log.read(6, 1000).batches


def test_read_committed_stops_at_open_transaction() -> None:
    log = PartitionLog(LogConfig())
    log.append(batch(b"before"), wall_ms=1)
    log.append(batch(b"open", sequence=0, producer=(7, 0), transactional=True), wall_ms=1)
    log.append(batch(b"after"), wall_ms=1)
    assert log.last_stable_offset == 1
    assert stored_records(log, committed=True).column("value").to_pylist() == [b"before"]
    assert stored_records(log).column("value").to_pylist() == [b"before", b"open", b"after"]
    log.append_end_marker(7, 0, commit=True, wall_ms=1)
    assert log.last_stable_offset == log.log_end_offset == 4
    assert stored_records(log, committed=True).column("value").to_pylist() == [b"before", b"open", b"after"]


def test_lists_aborted_transaction_only_to_overlapping_read_committed_reads() -> None:
    log = PartitionLog(LogConfig())
    log.append(batch(b"bad", sequence=0, producer=(7, 0), transactional=True), wall_ms=1)
    log.append_end_marker(7, 0, commit=False, wall_ms=1)
    log.append(batch(b"good"), wall_ms=1)
    (aborted,) = log.read(0, 10_000, committed=True).aborted_ranges
    assert (aborted.producer_id, aborted.first_offset) == (7, 0)
    assert not log.read(2, 10_000, committed=True).aborted_ranges
    assert not log.read(0, 10_000).aborted_ranges
    assert stored_records(log, committed=True).column("value").to_pylist() == [b"good"]


def test_writes_end_marker_in_kafkas_format() -> None:
    log = PartitionLog(LogConfig())
    log.append(batch(b"a", sequence=0, producer=(7, 2), transactional=True), wall_ms=1)
    log.append_end_marker(7, 2, commit=True, wall_ms=9)
    (decoded,) = decode_batches(log.read(1, 10_000).batches[0])
    header = decoded.header
    assert (header.is_control, header.is_transactional, header.producer_id, header.producer_epoch) == (True, True, 7, 2)
    assert decoded.columns.column("key").to_pylist() == [struct.pack(">hh", 0, 1)]
    assert decoded.columns.column("value").to_pylist() == [struct.pack(">hi", 0, 0)]


def test_finds_offset_by_timestamp_within_a_batch() -> None:
    log = PartitionLog(LogConfig())
    log.append(batch_with_times(100, 105), wall_ms=1)
    assert [log.find_offset_by_timestamp(time) for time in (0, 100, 101, 106)] == [
        (100, 0),
        (100, 0),
        (105, 1),
        (-1, -1),
    ]
    assert log.find_max_timestamp() == (105, 1)


def test_lookup_by_timestamp_skips_deleted_records_of_a_batch() -> None:
    log = PartitionLog(LogConfig())
    log.append(batch_with_times(100, 105), wall_ms=1)
    log.delete_records(1)
    assert [log.find_offset_by_timestamp(time) for time in (0, 105, 106)] == [(105, 1), (105, 1), (-1, -1)]


def test_lookup_by_timestamp_skips_batch_whose_matching_records_are_deleted() -> None:
    log = PartitionLog(LogConfig())
    log.append(batch_with_times(109, 100), wall_ms=1)
    log.append(batch_with_times(104, 105), wall_ms=1)
    log.delete_records(1)
    assert log.find_offset_by_timestamp(101) == (104, 2)
    assert log.find_max_timestamp() == (105, 3)


def test_lookup_by_timestamp_in_undecodable_batch_returns_no_deleted_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    log = PartitionLog(LogConfig(check_records=False))
    log.append(batch_with_times(100, 105), wall_ms=1)
    monkeypatch.setattr(batch_validation, "MAX_DECODED_BYTES", 1)
    log.delete_records(1)
    assert log.find_offset_by_timestamp(0) == log.find_max_timestamp() == (105, 1)


def batch_with_times(first_timestamp: int, second_timestamp: int) -> bytes:
    """Encode a batch of two records with timestamps at most 63 ms apart."""
    delta = second_timestamp - first_timestamp
    zigzag_delta = 2 * delta if delta >= 0 else -2 * delta - 1
    second_record = bytes([18, 0, zigzag_delta, 2, 1, 6]) + b"b.b\0"  # offset delta 1
    body = record(b"a") + second_record
    header = build_header(
        segments=[body],
        record_count=2,
        base_timestamp=first_timestamp,
        max_timestamp=max(first_timestamp, second_timestamp),
    )
    return header + body


def test_discarding_log_counts_records_and_stores_none() -> None:
    log = PartitionLog(LogConfig(discard=True))
    data = batch(b"a", b"b")
    assert [log.append(data, wall_ms=1).base_offset for _ in range(3)] == [0, 2, 4]
    assert (log.records_appended, log.bytes_appended, log.batches_appended) == (6, 3 * len(data), 3)
    assert not log.read(0, 10_000).batches
