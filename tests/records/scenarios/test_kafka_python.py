"""kafka-python reads our batches, and we read those of kafka-python."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder

from spark_kafka_sink.errors import UnsupportedFormatError
from spark_kafka_sink.records.compression import COMPRESSION_LEVELS, Codec
from spark_kafka_sink.records.decoder import decode_batches
from tests.records.column_strategies import NOW, arrow_columns, equal_size_rows, mixed_rows
from tests.records.reference_encoder import Row
from tests.records.shapes import SHAPES, decode_rows, encode_batches, expected_rows, to_columns


def read_by_kafka_python(buffer: bytes) -> list[tuple[int, Row]]:
    records = MemoryRecords(buffer)
    found = []
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        found += [(r.offset, Row(r.value, r.key, tuple(r.headers), r.timestamp)) for r in batch]
    return found


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("shape", SHAPES)
def test_kafka_python_reads_our_batches_of_every_codec_and_shape(codec: Codec, shape: str) -> None:
    rows = SHAPES[shape]
    assert read_by_kafka_python(encode_batches(to_columns(rows), codec)) == expected_rows(rows)


@pytest.mark.parametrize("codec", list(COMPRESSION_LEVELS))
def test_kafka_python_reads_our_batches_of_every_compression_level(codec: Codec) -> None:
    low, high, default = COMPRESSION_LEVELS[codec]
    for level in {low, high, default, 5}:
        buffer = encode_batches(to_columns(SHAPES["uneven"]), codec, level=level)
        assert read_by_kafka_python(buffer) == expected_rows(SHAPES["uneven"])


@given(st.data(), mixed_rows | equal_size_rows(), st.sampled_from(list(Codec)), st.integers(200, 5_000))
@settings(max_examples=60, deadline=None)
def test_kafka_python_reads_our_batches_of_any_columns(
    data: st.DataObject, rows: list[Row], codec: Codec, batch_bytes: int
) -> None:
    columns = data.draw(arrow_columns(rows))
    assert read_by_kafka_python(encode_batches(columns, codec, batch_bytes)) == expected_rows(rows)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("shape", SHAPES)
def test_reads_batches_of_kafka_python(codec: Codec, shape: str) -> None:
    rows = SHAPES[shape]
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1 << 22)
    for _, row in expected_rows(rows):
        assert builder.append(row.timestamp, row.key, row.value, list(row.headers or ())) is not None
    builder.close()
    assert decode_rows(bytes(builder.buffer())) == expected_rows(rows)


def test_reads_transactional_batches_of_kafka_python() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, True, 7, 3, 11, 1 << 20)
    builder.append(0, NOW, b"k", b"v", [])
    ((header, columns),) = decode_batches(bytes(builder.build()))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert header.is_transactional
    assert columns.num_rows == 1


@pytest.mark.parametrize("magic", [0, 1])
def test_rejects_older_message_sets_of_kafka_python(magic: int) -> None:
    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    builder.append(NOW, b"k", b"v")
    builder.close()
    with pytest.raises(UnsupportedFormatError, match=f"v{magic}"):
        list(decode_batches(bytes(builder.buffer())))
