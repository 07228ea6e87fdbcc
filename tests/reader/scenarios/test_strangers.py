"""Readers of hostile brokers and topics."""

from __future__ import annotations

import io
import json
import tracemalloc

import pyarrow as pa
import pytest

from spark_kafka_sink.cli import row_formats
from spark_kafka_sink.errors import DataError, DecodeError
from spark_kafka_sink.protocol.messages.fetch import FetchResponse
from spark_kafka_sink.protocol.messages.list_offsets import ListOffsetsResponse
from spark_kafka_sink.reader import fetched
from spark_kafka_sink.reader.fetched import iterate_visible_rows
from spark_kafka_sink.records.compression import Codec, compress
from tests.reader.scripted_cluster import Cluster, Log, rows
from tests.reader.stored_batches import BASE_TIME, batch
from tests.records.batch_headers import build_header
from tests.records.reference_encoder import Row, reference_record

MEGABYTE = 1 << 20
ALL = 1 << 40


def compressed_zeros(offset: int, size: int) -> bytes:
    """Build a small batch with one record, whose value expands to `size` zeros."""
    body = compress(Codec.ZSTD, [reference_record(Row(bytes(size)), 0, 0)])
    header = build_header(
        segments=[body],
        record_count=1,
        base_timestamp=BASE_TIME,
        max_timestamp=BASE_TIME,
        codec=Codec.ZSTD,
        base_offset=offset,
    )
    return bytes(header) + bytes(body)


def read_parts(records: bytes) -> list[tuple[int, int]]:
    """Return the row count and next offset of each part, without keeping the part."""
    fetched_parts = iterate_visible_rows(records, None, topic="t", partition=0, start=0, stop=ALL)
    return [(part.rows.num_rows, part.next_offset) for part in fetched_parts]


def test_yields_large_fetch_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "CHUNK_BYTES", 4 * MEGABYTE)
    records = b"".join(compressed_zeros(offset, 2 * MEGABYTE) for offset in range(20))
    assert len(records) < 10_000
    read_parts(records[:500])  # allocate everything that is allocated only once
    before = pa.total_allocated_bytes()
    peak_arrow_bytes = [0]
    tracemalloc.start()
    for part in iterate_visible_rows(records, None, topic="t", partition=0, start=0, stop=ALL):
        peak_arrow_bytes[0] = max(peak_arrow_bytes[0], pa.total_allocated_bytes() - before)
        assert part.rows.num_rows in (0, 2)
        del part
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_arrow_bytes[0] + peak < 3 * 4 * MEGABYTE


def test_yields_small_batches_together() -> None:
    assert read_parts(b"".join(batch(offset, b"a") for offset in range(1000))) == [(1000, 1000)]


def test_rejects_batch_above_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "MAX_BATCH_BYTES", MEGABYTE)
    assert read_parts(compressed_zeros(0, MEGABYTE - 100)) == [(1, 1)]
    with pytest.raises(DecodeError, match="more than 1048576 bytes"):
        read_parts(compressed_zeros(0, MEGABYTE))


def test_rejects_topic_above_max_bytes() -> None:
    log = Log([compressed_zeros(offset, MEGABYTE) for offset in range(10)])
    with Cluster(log).reader() as reader:
        assert reader.read("t", max_bytes=11 * MEGABYTE).num_rows == 10
        with pytest.raises(DataError, match=r"topic t has more than 5242880 bytes of rows\. Increase max_bytes"):
            reader.read("t", max_bytes=5 * MEGABYTE)
        assert sum(table.num_rows for table in reader.batches("t")) == 10


class LyingCluster(Cluster):
    """Adds a partition to each response that was not requested."""

    def list_offsets(self, number: int, request: object) -> ListOffsetsResponse:
        response = super().list_offsets(number, request)  # type: ignore[arg-type]
        (topic,) = response.topics
        unrequested = type(topic.partitions[0])(partition_index=99, offset=5)
        topic.partitions.append(unrequested)
        return response

    def fetch(self, number: int, request: object, version: int) -> FetchResponse:
        response = super().fetch(number, request, version)  # type: ignore[arg-type]
        (topic,) = response.responses
        topic.partitions.append(type(topic.partitions[0])(partition_index=99, records=batch(0, b"unasked")))
        return response


def test_ignores_partitions_that_were_not_requested() -> None:
    with LyingCluster(Log([batch(0, b"a")])).reader() as reader:
        assert reader.end_offsets("t") == {0: 1}
        assert rows(reader.read("t")) == [(0, 0, b"a")]


@pytest.mark.parametrize(
    ("timestamp", "formatted"),
    [
        (2**63 - 1, "9999-12-31T23:59:59.999000+00:00"),
        (-(2**63), "0001-01-01T00:00:00+00:00"),
        (253_402_300_800_000, "9999-12-31T23:59:59.999000+00:00"),
        (-1, "1969-12-31T23:59:59.999000+00:00"),
    ],
)
def test_shows_nearest_valid_time_for_invalid_timestamp(timestamp: int, formatted: str) -> None:
    record = reference_record(Row(b"a"), 0, 0)
    header = build_header(segments=[record], record_count=1, base_timestamp=timestamp, max_timestamp=timestamp)
    (part,) = iterate_visible_rows(bytes(header) + record, None, topic="t", partition=0, start=0, stop=ALL)
    out = io.BytesIO()
    out.writelines(row_formats.format_json_lines(part.rows, ["value"]))
    assert json.loads(out.getvalue())["timestamp"] == formatted


@pytest.mark.parametrize("show", [row_formats.format_text_lines, row_formats.format_json_lines])
def test_formats_convert_rows_in_small_chunks(monkeypatch: pytest.MonkeyPatch, show: row_formats.RowFormatter) -> None:
    def peak(rows_at_once: int) -> int:
        monkeypatch.setattr(row_formats, "MAX_ROWS_PER_CHUNK", rows_at_once)
        tracemalloc.start()
        assert sum(1 for _ in show(part.rows, ["value"])) == 2000
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    values = [b"value %d" % number for number in range(2000)]
    (part,) = iterate_visible_rows(batch(0, *values), None, topic="t", partition=0, start=0, stop=ALL)
    peak(2000)  # allocate everything that is allocated only once
    assert 4 * peak(20) < peak(2000)
