"""Comparison of receipts with topics finds each of 10,000 single faults, and reports no false ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.producer.record_digests import DigestCollector
from spark_kafka_sink.producer.results import OffsetRange, OffsetRangeCollector
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.record_hash import UInt64Array, compute_digest, hash_records
from spark_kafka_sink.reports import receipts
from spark_kafka_sink.reports.receipts import FoundRecords, ReceiptOutcome, compare_partition, compare_topic
from spark_kafka_sink.testing import embedded_broker, read_topic

FAULTS = 10_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Record = dict[str, Any]
Written = tuple[dict[int, OffsetRange], dict[int, pa.Table]]


def build_columns(records: list[Record]) -> RecordColumns:
    return RecordColumns(
        pa.array([record["value"] for record in records], pa.binary()),
        pa.array([record["key"] for record in records], pa.binary()),
        pa.array([record["headers"] for record in records], HEADERS),
    )


def make_record(rng: random.Random) -> Record:
    names = rng.sample(["trace", "source", "retry"], rng.randrange(4))
    return {
        "key": rng.choice([None, b"", b"%d" % rng.randrange(10**7)]),
        "value": rng.choice([None, b"", b'{"id": %d, "amount": %d.5}' % (rng.randrange(10**9), rng.randrange(10**4))]),
        "headers": [{"key": name, "value": rng.choice([None, b"", rng.randbytes(8)])} for name in names] or None,
    }


@pytest.fixture(scope="module")
def written() -> Written:
    """Write a topic, and return its receipt and its decoded rows by partition."""
    rng = random.Random(50)
    ranges, digests = OffsetRangeCollector(), DigestCollector()
    with embedded_broker(topics={"orders": 3}) as broker:
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for _ in range(3):
                columns = build_columns([make_record(rng) for _ in range(200)])
                partition = pa.array([rng.randrange(3) for _ in range(200)])
                future = producer.send_columns("orders", columns, partition, keep_row_indices=True)
                producer.flush()
                ranges.add(future.result(60))
                digests.add(future.result(60), columns)
        table = read_topic(broker.bootstrap_servers, "orders")
    rows = {partition: table.filter(pa.compute.equal(table["partition"], partition)) for partition in range(3)}
    return digests.with_digests(ranges.by_topic())["orders"], rows


def find(rows: pa.Table) -> FoundRecords:
    found = FoundRecords()
    found.add(rows)
    return found


def hash_table(rows: pa.Table) -> UInt64Array:
    return hash_records(RecordColumns(rows["value"], rows["key"], rows["headers"]))


def build_found(*parts: UInt64Array) -> FoundRecords:
    found = FoundRecords()
    hashes = np.concatenate(parts)
    found.add_hashes(np.arange(len(hashes)), hashes)
    return found


def alter(rng: random.Random, record: Record) -> Record:
    """Return the record with one change."""
    altered = dict(record)
    field = rng.choice(["key", "value", "value", "headers"])
    if field == "headers":
        altered["headers"] = alter_headers(rng, record["headers"] or [])
        return altered
    data = record[field]
    changes: list[Callable[[], bytes | None]] = [
        lambda: None if data is not None else b"",
        lambda: (data or b"") + b"\0",
    ]
    if data:
        position = rng.randrange(len(data))
        changes += [
            lambda: data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :],
            lambda: data[:-1],
            lambda: data[:position] + b" " + data[position:],
        ]
    altered[field] = rng.choice(changes)()
    return altered


def alter_headers(rng: random.Random, headers: list[Record]) -> list[Record] | None:
    if not headers or rng.random() < 0.2:
        return [*headers, {"key": "added", "value": None}]
    if len(headers) > 1 and rng.random() < 0.4:
        return headers[::-1]
    first, *others = headers
    if rng.random() < 0.3:
        return others or None
    return [{"key": first["key"] + "x", "value": first["value"]}, *others]


def test_finds_each_of_10_000_single_faults(written: Written) -> None:
    receipt, rows = written
    rng = random.Random(1)
    records = {partition: table.to_pylist() for partition, table in rows.items()}
    hashes = {partition: hash_table(table) for partition, table in rows.items()}
    faults = [
        (rng.choice(["lost", "doubled", "altered", "swapped"]), partition, rng.randrange(len(records[partition])))
        for partition in (rng.randrange(3) for _ in range(FAULTS))
    ]
    altered = hash_records(build_columns([alter(rng, records[partition][row]) for _, partition, row in faults]))
    outcomes = {"lost": ReceiptOutcome.MISSING, "doubled": ReceiptOutcome.DUPLICATED, "altered": ReceiptOutcome.ALTERED}
    found_faults = 0
    for number, (fault, partition, row) in enumerate(faults):
        own = hashes[partition]
        record, before, after = own[row : row + 1], own[:row], own[row + 1 :]
        found = {other: build_found(hashes[other]) for other in range(3) if other != partition}
        expected = {partition: outcomes.get(fault, ReceiptOutcome.MOVED)}
        if fault == "lost":
            found[partition] = build_found(before, after)
        elif fault == "doubled":
            found[partition] = build_found(before, record, record, after)
        elif fault == "altered":
            found[partition] = build_found(before, altered[number : number + 1], after)
        else:
            other = (partition + 1) % 3
            other_row = rng.randrange(len(hashes[other]))
            moved = hashes[other][other_row : other_row + 1]
            if moved == record:  # exchanging equal records changes nothing
                expected = {}
            found[partition] = build_found(before, moved, after)
            found[other] = build_found(hashes[other][:other_row], record, hashes[other][other_row + 1 :])
            expected |= {other: ReceiptOutcome.MOVED} if expected else {}
        results = compare_topic(receipt, found)
        assert {p: result.outcome for p, result in results.items() if result.outcome.is_failure} == expected, fault
        found_faults += bool(expected)
    assert found_faults > 0.98 * FAULTS


def test_intact_partitions_cause_no_alarm_in_any_order_and_chunks(written: Written) -> None:
    receipt, rows = written
    rng = np.random.default_rng(2)
    for _ in range(100):
        for partition, table in rows.items():
            hashes = hash_table(table.slice(0, 0))
            found = FoundRecords()
            found.add_hashes(np.zeros(0, np.int64), hashes)
            middle = int(rng.integers(len(table)))
            found.add(table.slice(middle))
            found.add(table.slice(0, middle))
            assert compare_partition(receipt[partition], found).outcome is ReceiptOutcome.INTACT


def test_locates_duplicated_run(written: Written) -> None:
    receipt, rows = written
    own = hash_table(rows[0])
    found = build_found(own[:20], own[10:20], own[20:])
    result = compare_partition(receipt[0], found)
    assert (result.outcome, result.detail) == (ReceiptOutcome.DUPLICATED, "10 records duplicated, at offsets 20 to 29")


def test_finds_duplicates_at_several_places() -> None:
    own = hash_records(build_columns([{"key": None, "value": b"%d" % row, "headers": None} for row in range(10)]))
    receipt = OffsetRange(0, 11, 10, compute_digest(own))
    found = build_found(own[5:6], own, own[2:3])
    result = compare_partition(receipt, found)
    assert (result.outcome, result.detail) == (
        ReceiptOutcome.DUPLICATED,
        "2 records duplicated, between offsets 6 and 11",
    )


def test_records_of_other_writers_are_no_failure_if_they_are_consecutive(written: Written) -> None:
    receipt, rows = written
    own, other = hash_table(rows[0]), hash_records(build_columns([{"key": b"o", "value": b"v", "headers": None}] * 3))
    result = compare_partition(receipt[0], build_found(own[:7], other, own[7:]))
    assert (result.outcome, result.detail) == (
        ReceiptOutcome.INTACT_WITH_OTHERS,
        "3 records from other writers, at offsets 7 to 9",
    )
    assert not result.outcome.is_failure
    scattered = build_found(other[:1], own, other[:1])
    assert compare_partition(receipt[0], scattered).outcome is ReceiptOutcome.EXTRA


def test_extra_record_does_not_hide_altered_one(written: Written) -> None:
    receipt, rows = written
    own, other = hash_table(rows[0]), hash_records(build_columns([{"key": b"o", "value": b"v", "headers": None}]))
    found = build_found(other, other, own[1:])
    assert compare_partition(receipt[0], found).outcome is ReceiptOutcome.EXTRA


def test_does_not_locate_records_above_the_memory_limit(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt, rows = written
    monkeypatch.setattr(receipts, "MAX_LOCATED_RECORDS", len(rows[0]))
    found = find(rows[0])
    found.add(rows[0].slice(0, 1))
    assert compare_partition(receipt[0], found).outcome is ReceiptOutcome.EXTRA


def test_range_without_digest_or_offsets_cannot_be_verified() -> None:
    assert compare_partition(OffsetRange(0, 1, 2), FoundRecords()).outcome is ReceiptOutcome.UNKNOWN
    assert compare_partition(OffsetRange(-1, -1, 2, 5), FoundRecords()).outcome is ReceiptOutcome.UNKNOWN


def test_rows_without_offset_may_lie_outside_of_the_range(written: Written) -> None:
    receipt, rows = written
    incomplete = replace(receipt[0], rows_without_offset=2)
    assert compare_partition(incomplete, find(rows[0])).outcome is ReceiptOutcome.INTACT
    result = compare_partition(incomplete, find(rows[0].slice(2)))
    assert result.outcome is ReceiptOutcome.UNKNOWN
    assert result.detail.startswith("the broker returned no offsets for 2 rows")


def test_missing_records_have_a_reason(written: Written) -> None:
    receipt, rows = written
    found = find(rows[0].slice(1))
    assert compare_partition(receipt[0], found).detail.endswith("they were lost, or compaction has removed them")
    found.log_end_offset = receipt[0].last_offset
    assert "the partition now ends at offset" in compare_partition(receipt[0], found).detail
    found.log_start_offset = 1
    assert "the partition now begins at offset 1, so retention" in compare_partition(receipt[0], found).detail
