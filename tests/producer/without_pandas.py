"""Program that sends columns of every kind and single records, and fails if pandas was imported.

pyarrow imports pandas, if it is installed, at a process's first `pa.array`, `pa.scalar` or `np.asarray(array)`. So even
the input is built from buffers here. At the end `pa.array` is called to prove that the program detects the import.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.topic_rows import split_by_topic
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import create_simulated_producer, wait_for_result
from tests.simulated_cluster import SimulatedCluster

ROWS = 64
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def bitmap(nulls: bool) -> pa.Buffer | None:
    return pa.py_buffer(np.full(ROWS // 8, 0b01010101, np.uint8)) if nulls else None


def some_bytes(kind: pa.DataType, nulls: bool) -> pa.Array:
    """Build values of different lengths, including bytes under the nulls."""
    if pa.types.is_binary_view(kind):
        return some_bytes(pa.binary(), nulls).cast(kind)
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    offsets = np.cumsum(np.arange(ROWS + 1) % 9).astype(np.int64 if wide else np.int32)
    data = np.full(int(offsets[-1]), 97, np.uint8)
    return pa.Array.from_buffers(kind, ROWS, [bitmap(nulls), pa.py_buffer(offsets), pa.py_buffer(data)])


def numbers(kind: pa.DataType, nulls: bool, highest: int) -> pa.Array:
    data = (np.arange(ROWS) % (highest + 1)).astype(f"i{kind.bit_width // 8}")
    return pa.Array.from_buffers(kind, ROWS, [bitmap(nulls), pa.py_buffer(data)])


def headers(nulls: bool) -> pa.Array:
    keys, values = some_bytes(pa.string(), nulls=False), some_bytes(pa.binary(), nulls)
    each = pa.StructArray.from_arrays([keys, values], fields=[*HEADERS.value_type])
    offsets = pa.py_buffer(np.arange(ROWS + 1, dtype=np.int32))
    return pa.Array.from_buffers(HEADERS, ROWS, [bitmap(nulls), offsets], children=[each])


def send_columns(producer: KafkaProducer, kind: pa.DataType, time: pa.DataType, nulls: bool) -> None:
    column = some_bytes(kind, nulls)
    rows = RecordColumns(column, column, headers(nulls), numbers(time, nulls, 10**9))
    partition = numbers(pa.int32(), nulls, highest=1)
    waiting = [producer.send_columns("t", rows), producer.send_columns("t", rows.slice(3), partition.slice(3))]
    in_pieces = pa.chunked_array([column, column.slice(5)])
    waiting.append(producer.send_columns("t", RecordColumns(in_pieces, in_pieces)))
    waiting.append(producer.send_columns("t", RecordColumns(pa.nulls(9)), partition.slice(0, 9)))
    # Rows of a partition that does not exist are rejected, and the others are separated from them.
    rejected_rows = producer.send_columns("t", rows, numbers(pa.int32(), nulls, highest=2))
    for future in waiting:
        wait_for_result(producer, future).raise_for_failures()
    result = wait_for_result(producer, rejected_rows)
    assert result.rows_failed
    assert result.rows_written


def send_records(producer: KafkaProducer) -> None:
    waiting = [
        producer.send(ProducerRecord("t", b"value", key=b"key", headers=[("a", b"b"), ("c", None)])),
        producer.send(ProducerRecord("t", None, partition=1, timestamp_ms=7)),
        producer.send(ProducerRecord("t", "text")),
    ]
    for future in waiting:
        wait_for_result(producer, future)


def split_topics() -> None:
    topics, values = some_bytes(pa.string(), nulls=True), some_bytes(pa.binary(), nulls=False)
    split = split_by_topic(topics, RecordColumns(values), numbers(pa.int32(), nulls=False, highest=1))
    assert sum(part.columns.num_rows for part in split.topic_rows) == ROWS


def must_not_be_there(after: Any) -> None:
    if "pandas" in sys.modules:
        sys.exit(f"pandas was imported by: {after}")


def main() -> None:
    must_not_be_there("the imports")
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 2})
    producer = create_simulated_producer(cluster)
    send_records(producer)
    must_not_be_there("send")
    split_topics()
    must_not_be_there("rows of several topics")
    for kind in (pa.binary(), pa.string(), pa.large_binary(), pa.binary_view()):
        for time in (pa.int64(), pa.timestamp("us")):
            for nulls in (False, True):
                send_columns(producer, kind, time, nulls)
                must_not_be_there(f"send_columns of {kind} and {time}, nulls: {nulls}")
    rejection = cluster.control.when(api=ApiKey.PRODUCE).fail(error_codes.MESSAGE_TOO_LARGE)
    send_columns(producer, pa.binary(), pa.int64(), nulls=True)
    assert rejection.affected_count
    must_not_be_there("a batch that was split")
    producer.close()
    pa.array([1])
    if "pandas" not in sys.modules:
        sys.exit("nothing is proved: pyarrow does not import pandas here at all")


if __name__ == "__main__":
    main()
