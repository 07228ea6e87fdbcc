"""How near a sink in Python can come to a writer that only counts: what is left of ours if it is no producer.

    python -m integration.benchmarks.spark_floor [--rows 10000000] [--rounds 5]

Two writers do nothing but what a row needs, with the functions of our producer: a partition by its key, its place among
the rows of that partition, its record, the checksum, the socket. They have no batches that go on, no memory limit, no
thread that sends, no request and no answer. One encodes each Arrow batch as it comes, the other five of them together,
as our producer does with twelve partitions. Beside them our sink, Spark's own, and the writer that only counts, in
turns and on the same rows as in spark_sink.py.
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
    Seen,
    compare,
    frames_of,
    start_spark,
)
from spark_kafka_sink.producer.partitioner import compute_partitions_by_key
from spark_kafka_sink.records.batch_slicing import BatchSlices
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.spark.worker_process import disable_delayed_ack, freeze_gc

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
    def __init__(self, port: int, batches: int) -> None:
        self._port, self._batches = port, batches

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_gc()
        disable_delayed_ack()
        waiting: list[RecordColumns] = []
        with socket.create_connection(("127.0.0.1", self._port)) as sink:
            for batch in iterator:
                waiting.append(RecordColumns(value=batch.column("value"), key=batch.column("key")))
                if len(waiting) == self._batches:
                    send(sink, waiting)
                    waiting = []
            if waiting:
                send(sink, waiting)
        return WriterCommitMessage()


def send(sink: socket.socket, waiting: Sequence[RecordColumns]) -> None:
    """One record batch for each partition, without its header."""
    keys = [rows.key for rows in waiting if rows.key is not None]
    partitions = np.concatenate([compute_partitions_by_key(key, PARTITIONS)[0] for key in keys]).astype(np.uint8)
    stops = np.bincount(partitions, minlength=PARTITIONS).cumsum().tolist()
    nothing = [0] * PARTITIONS
    slices = BatchSlices(range(PARTITIONS), [0, *stops[:-1]], stops, nothing, [None] * PARTITIONS)
    order = partitions.argsort(kind="stable").astype(np.int32)
    for encoded in encode_records(RecordColumns.concat(waiting), slices, 0, order):
        crc32c(encoded.data)
        sink.sendall(encoded.data)


class RecordsSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "records"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return RecordsWriter(int(self.options["port"]), int(self.options["batches"]))


@contextlib.contextmanager
def discarding_socket() -> Iterator[str]:
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


def shown(seen: Seen) -> Iterator[str]:
    """Each contender beside the writer that only counts."""
    yield "| writer | rows/s | of those of the writer that only counts | CPU without the source's, ns/row | rounds |"
    yield "|---|---:|---:|---:|---|"
    for name, writes in seen.items():
        parts = [write["rate"] / most["rate"] for write, most in zip(writes, seen[COUNTING], strict=True)]
        rate, own = (median([write[figure] for write in writes]) for figure in ("rate", "own"))
        rounds = ", ".join(f"{part:.2f}" for part in parts)
        yield f"| {name} | {rate:,.0f} | {median(parts):.2f} | {own:,.0f} | {rounds} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a row costs at least in Python.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        bootstrap, broker = stack.enter_context(discard_broker(TOPICS))
        port = stack.enter_context(discarding_socket())
        spark = start_spark()
        stack.callback(spark.stop)
        spark.dataSource.register(RecordsSource)
        for name, batches in FLOORS.items():
            CONTENDERS[name] = partial(write_records, port=port, batches=batches)
        frames = frames_of(spark, arguments.rows, "real")
        print("\n".join(shown(compare(frames, arguments.rounds, [COUNTING, *FLOORS, OURS, SPARKS], bootstrap, broker))))


if __name__ == "__main__":
    main()
