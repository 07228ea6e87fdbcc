"""A program that sends records as fast as the producer accepts them, while a test measures its memory.

    python -m integration.support.steady_producer BOOTSTRAP TOPIC RECORDS GATE [--options JSON] [--pandas] [--singly]

It sends chunks of 10,000 records with keys of 12 bytes and values of 100 bytes, or with --singly each record with its
own call of send(). When all records are acknowledged, it prints its measurements as one line of JSON. It keeps no
future after the result is known. It builds columns without `pa.array`, which would import pandas. With --pandas it
imports pandas, like a program that uses `pa.array`.

GATE is a file of one byte (see Gate) that tells the broker when to respond, so that the broker is always slower than
the producer: b"1" while a call waits for memory and after all records were sent, otherwise b"0".
"""

from __future__ import annotations

import argparse
import json
import mmap
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns, RecordMetadata

ROWS = 10_000
POLL_SECONDS = 0.002
LETTERS = np.random.default_rng(1).integers(97, 123, (ROWS, 112), np.uint8)


def build_rows() -> RecordColumns:
    """Build a chunk in newly allocated memory, like columns that were just read from a file."""
    return RecordColumns(value=build_column(LETTERS[:, 12:]), key=build_column(LETTERS[:, :12]))


def build_column(letters: NDArray[np.uint8]) -> pa.Array:
    width = letters.shape[1]
    offsets = np.arange(0, (ROWS + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(letters.copy())])


class Gate:
    """Writes to a file, which the test reads, whether the producer waits for memory."""

    def __init__(self, path: Path, producer: KafkaProducer) -> None:
        with path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)
        self._producer = producer
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop_event.wait(POLL_SECONDS):
            self._byte[:] = b"1" if self._producer.metrics()["waiting-threads"] else b"0"

    def open_permanently(self) -> None:
        self._stop_event.set()
        self._thread.join()
        self._byte[:] = b"1"


def read_memory_usage() -> dict[str, int]:
    """Return the peak of this process's resident memory, and the resident bytes of mapped files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "peak_bytes": int(status["VmHWM"].split()[0]) * 1024,
        "file_bytes": int(status["RssFile"].split()[0]) * 1024,
    }


def send_columns(producer: KafkaProducer, topic: str, records: int, gate: Gate) -> int:
    written = 0
    futures: deque[Any] = deque()

    def count_written() -> int:
        result = futures.popleft().result()
        result.raise_for_failures()
        return int(result.rows_written)

    for _ in range(records // ROWS):
        futures.append(producer.send_columns(topic, build_rows()))
        while futures and futures[0].done():
            written += count_written()
    gate.open_permanently()
    producer.flush()
    while futures:
        written += count_written()
    return written


def send_singly(producer: KafkaProducer, topic: str, records: int, gate: Gate) -> int:
    written = 0

    def count_written(metadata: RecordMetadata | None, error: Exception | None) -> None:
        nonlocal written
        written += error is None

    for number in range(records):
        producer.send(ProducerRecord(topic, b"%0100d" % number, key=b"%012d" % number), count_written)
    gate.open_permanently()
    producer.flush()
    return written


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    send = send_singly if arguments.singly else send_columns
    with KafkaProducer({"bootstrap.servers": arguments.bootstrap, **arguments.options}) as producer:
        written = send(producer, arguments.topic, arguments.records, Gate(arguments.gate, producer))
        waited_s = producer.metrics()["bufferpool-wait-time-ns-total"] / 1e9
    return {"written": written, "waited_s": waited_s, **read_memory_usage()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    parser.add_argument("gate", type=Path)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--pandas", action="store_true")
    parser.add_argument("--singly", action="store_true")
    arguments = parser.parse_args()
    if arguments.pandas:
        pa.array([1])
    print(json.dumps(measure(arguments)), flush=True)


if __name__ == "__main__":
    main()
