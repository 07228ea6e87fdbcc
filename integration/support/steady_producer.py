"""A process that sends records as fast as they are taken, and does nothing else: others measure its memory.

    python -m integration.support.steady_producer BOOTSTRAP TOPIC RECORDS GATE [--options JSON] [--pandas] [--singly]

Chunks of 10,000 records with keys of 12 bytes and values of 100. They are built without `pa.array`, which would import
pandas; with --pandas it is imported, as in a program that makes its columns that way. When all are acknowledged, one
line of JSON says how it was. No future is kept longer than it takes to look at its result. With --singly each record
is a send() of its own.

GATE is a file of one byte (see Gate): b"1" while a call waits for memory, and when all was sent, so that a broker can
be slower than any producer: it answers only then.
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
LOOK_SECONDS = 0.002
LETTERS = np.random.default_rng(1).integers(97, 123, (ROWS, 112), np.uint8)


def rows() -> RecordColumns:
    """In memory of their own, as columns are that were just read from somewhere."""
    return RecordColumns(value=column(LETTERS[:, 12:]), key=column(LETTERS[:, :12]))


def column(letters: NDArray[np.uint8]) -> pa.Array:
    width = letters.shape[1]
    offsets = np.arange(0, (ROWS + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(letters.copy())])


class Gate:
    """Says in a file, which it shares with the test, whether the producer waits for memory."""

    def __init__(self, path: Path, producer: KafkaProducer) -> None:
        with path.open("r+b") as file:
            self._byte = mmap.mmap(file.fileno(), 1)
        self._producer = producer
        self._done = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._watching.start()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            self._byte[:] = b"1" if self._producer.metrics()["waiting-threads"] else b"0"

    def open_for_good(self) -> None:
        self._done.set()
        self._watching.join()
        self._byte[:] = b"1"


def resident() -> dict[str, int]:
    """The most that was ever resident in this process, and what of it now are pages of the libraries' files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "peak_bytes": int(status["VmHWM"].split()[0]) * 1024,
        "file_bytes": int(status["RssFile"].split()[0]) * 1024,
    }


def send_columns(producer: KafkaProducer, topic: str, records: int, gate: Gate) -> int:
    written = 0
    waiting: deque[Any] = deque()

    def settle() -> int:
        result = waiting.popleft().result()
        result.raise_for_failures()
        return int(result.rows_written)

    for _ in range(records // ROWS):
        waiting.append(producer.send_columns(topic, rows()))
        while waiting and waiting[0].done():
            written += settle()
    gate.open_for_good()
    producer.flush()
    while waiting:
        written += settle()
    return written


def send_singly(producer: KafkaProducer, topic: str, records: int, gate: Gate) -> int:
    written = 0

    def settle(metadata: RecordMetadata | None, error: Exception | None) -> None:
        nonlocal written
        written += error is None

    for number in range(records):
        producer.send(ProducerRecord(topic, b"%0100d" % number, key=b"%012d" % number), settle)
    gate.open_for_good()
    producer.flush()
    return written


def measure(given: argparse.Namespace) -> dict[str, float]:
    send = send_singly if given.singly else send_columns
    with KafkaProducer({"bootstrap.servers": given.bootstrap, **given.options}) as producer:
        written = send(producer, given.topic, given.records, Gate(given.gate, producer))
        waited_s = producer.metrics()["bufferpool-wait-time-ns-total"] / 1e9
    return {"written": written, "waited_s": waited_s, **resident()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("records", type=int)
    parser.add_argument("gate", type=Path)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--pandas", action="store_true")
    parser.add_argument("--singly", action="store_true")
    given = parser.parse_args()
    if given.pandas:
        pa.array([1])
    print(json.dumps(measure(given)), flush=True)


if __name__ == "__main__":
    main()
