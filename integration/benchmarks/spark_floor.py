"""Benchmark of the minimum cost of a Python sink: the work per row that remains without a producer.

    python -m integration.benchmarks.spark_floor [--rows 10000000] [--rounds 5]

Two writers call the producer's functions for the necessary work only: choose a partition by key, group the rows by
partition, encode the records, compute the checksum and write to a socket. They have no open batches, no memory limit,
no sender thread, no requests and no responses. One encodes each Arrow batch, the other five Arrow batches at a time, as
the producer does with twelve partitions. They take turns with pykafka, Spark's own sink and a writer that only counts,
on the same rows as in spark_sink.py.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from integration.benchmarks.discard_broker import discard_broker
from integration.benchmarks.spark_sink import (
    CONTENDERS,
    COUNTING,
    OURS,
    PARTITIONS,
    SPARKS,
    TOPICS,
    RoundFigures,
    build_frames,
    compare,
    start_spark,
)
from spark_kafka_sink.producer.partitioner import compute_partitions_by_key
from spark_kafka_sink.records.batch_slicing import BatchSlices
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.spark.worker_process import disable_delayed_ack, update_gc_freeze

FLOORS = {"records of each Arrow batch": 1, "records of five Arrow batches": 5}
DISCARD = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def discard(connection):
    space = bytearray(1 << 17)
    while connection.recv_into(space):
        pass
while True:
    threading.Thread(target=discard, args=(listener.accept()[0],), daemon=True).start()
"""


class RecordsWriter(DataSourceArrowWriter):
    """Writer that encodes `batches` Arrow batches at a time and writes their records to a socket."""

    def __init__(self, port: int, batches: int) -> None:
        self._port, self._batches = port, batches

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        update_gc_freeze()
        disable_delayed_ack()
        pending_rows: list[RecordColumns] = []
        with socket.create_connection(("127.0.0.1", self._port)) as sink:
            for batch in iterator:
                pending_rows.append(RecordColumns(value=batch.column("value"), key=batch.column("key")))
                if len(pending_rows) == self._batches:
                    send(sink, pending_rows)
                    pending_rows = []
            if pending_rows:
                send(sink, pending_rows)
        return WriterCommitMessage()


def send(sink: socket.socket, pending_rows: Sequence[RecordColumns]) -> None:
    """Send one record batch without a header for each partition."""
    keys = [rows.key for rows in pending_rows if rows.key is not None]
    partitions = np.concatenate([compute_partitions_by_key(key, PARTITIONS)[0] for key in keys]).astype(np.uint8)
    stops = np.bincount(partitions, minlength=PARTITIONS).cumsum().tolist()
    zeros = [0] * PARTITIONS
    slices = BatchSlices(range(PARTITIONS), [0, *stops[:-1]], stops, zeros, [None] * PARTITIONS)
    order = partitions.argsort(kind="stable").astype(np.int32)
    for encoded in encode_records(RecordColumns.concat(pending_rows), slices, 0, order):
        crc32c(encoded.data)
        sink.sendall(encoded.data)


class RecordsSource(DataSource):
    """Data source `records`, with the options `port` and `batches` of RecordsWriter."""

    @classmethod
    def name(cls) -> str:
        return "records"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return RecordsWriter(int(self.options["port"]), int(self.options["batches"]))


@contextlib.contextmanager
def run_discard_server() -> Iterator[str]:
    """Run a process that reads and discards bytes, and yield its port."""
    process = subprocess.Popen([sys.executable, "-c", DISCARD], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        with process:
            process.wait()


def write_records(frame: DataFrame, _bootstrap: str, _topic: str, *, port: str, batches: int) -> None:
    frame.write.format("records").option("port", port).option("batches", batches).mode("append").save()


def format_comparison(results: RoundFigures) -> Iterator[str]:
    """Yield a table that compares each contender with the writer that only counts."""
    yield "| writer | rows/s | of those of the writer that only counts | CPU without the source's, ns/row | rounds |"
    yield "|---|---:|---:|---:|---|"
    for name, writes in results.items():
        ratios = [write["rate"] / counting["rate"] for write, counting in zip(writes, results[COUNTING], strict=True)]
        rate, own_cpu = (median([write[key] for write in writes]) for key in ("rate", "own"))
        rounds = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        yield f"| {name} | {rate:,.0f} | {median(ratios):.2f} | {own_cpu:,.0f} | {rounds} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Benchmark of the minimum cost of a Python sink.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        bootstrap, broker = stack.enter_context(discard_broker(TOPICS))
        port = stack.enter_context(run_discard_server())
        spark = start_spark()
        stack.callback(spark.stop)
        spark.dataSource.register(RecordsSource)
        for name, batches in FLOORS.items():
            CONTENDERS[name] = partial(write_records, port=port, batches=batches)
        frames = build_frames(spark, arguments.rows, "real")
        print(
            "\n".join(
                format_comparison(
                    compare(frames, arguments.rounds, [COUNTING, *FLOORS, OURS, SPARKS], bootstrap, broker)
                )
            )
        )


if __name__ == "__main__":
    main()
