"""How large the rooms are that a row passes: `python -m tests.counts` prints it, test_counts.py holds it.

classes      defined to append, queue, drain and keep memory (producer/batching), and for the encoder
             (records without the decoder and the codecs)
hops         the functions that a row passes on its way from `write(iterator)` to the socket, seen in one real write
modules      of ours that a Spark worker has imported before its first task, folders included
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa

from spark_kafka_sink.spark.columns import ColumnPlan
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pool import POOL
from spark_kafka_sink.spark.writer import KafkaBatchWriter
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import simulated_producer
from tests.simulated_cluster import SimulatedCluster

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "spark_kafka_sink"
BATCHING = ("producer/batching",)
ENCODER = ("records",)
NOT_ENCODER = ("records/decoder.py", "records/compression.py")
WORKER = f"{PACKAGE}.spark.writer"

HOPS = (
    "spark.writer:KafkaBatchWriter.write",
    "spark.write_task:write_rows",
    "spark.columns:split_by_topic",
    "spark.write_task:_Writing.send",
    "producer.producer:KafkaProducer.send_columns",
    "producer.partitioner:Partitioner.assign",
    "producer.batching.accumulator:RecordAccumulator.append_columns",
    "producer.batching.staging:Stage.add",
    "producer.batching.batch_filler:BatchFiller.fill",
    "producer.batching.grouping:group",
    "records.cutting:cut_batches",
    "records.encoder:encode",
    "records.joined_rows:JoinedRows.join",
    "producer.batching.batch:ProducerBatch.append",
    "producer.batching.accumulator:RecordAccumulator.drain",
    "producer.sending.produce_exchange:produce_request",
    "client.network_client:NetworkClient.send",
    "protocol.headers:encode_request",
    "network.selector:Selector.send",
    "network.selector:Selector.poll",
    "network.channel:KafkaChannel.write",
    "network.transport:PlaintextTransport.write",
)
"""From top to bottom. Each is reached after the one above it."""
ROOMS = ("spark", "producer", "producer.batching", "producer.sending", "client", "network")
"""From top to bottom. `records` and `protocol` are called by any of them, and return."""


def files_of(*places: str) -> list[Path]:
    paths = [ROOT / PACKAGE / place for place in places]
    return sorted(file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))


def classes_in(files: Iterable[Path]) -> list[str]:
    return [
        f"{file.stem}:{node.name}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]


def batching_files() -> list[Path]:
    return [file for file in files_of(*BATCHING) if file.name != "__init__.py"]


def encoder_files() -> list[Path]:
    without = files_of(*NOT_ENCODER)
    return [file for file in files_of(*ENCODER) if file.name != "__init__.py" and file not in without]


def package_lines() -> int:
    return sum(len(file.read_text().splitlines()) for file in files_of("."))


def worker_modules() -> list[str]:
    """What of ours is imported where Spark unpickles a writer, in a process of its own."""
    code = f"import sys, {WORKER}; print(*(name for name in sys.modules if name.split('.')[0] == {PACKAGE!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def code_of(hop: str) -> CodeType:
    """AttributeError if there is no such function any more."""
    module, _, name = hop.partition(":")
    found: Any = importlib.import_module(f"{PACKAGE}.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    code: CodeType = found.__code__
    return code


def room_of(hop: str) -> int | None:
    """Its number from the top; None for what any room calls."""
    module = hop.partition(":")[0]
    rooms = [index for index, room in enumerate(ROOMS) if f"{module}.".startswith(f"{room}.")]
    return max(rooms, default=None)


def ascents() -> list[str]:
    """Hops that lead back up; there should be none."""
    rooms = [(hop, room) for hop in HOPS if (room := room_of(hop)) is not None]
    return [lower for (_, above), (lower, room) in pairwise(rooms) if room < above]


def calls_of_one_write() -> list[CodeType]:
    """All calls of the functions in HOPS, in their order, while one task writes to a simulated cluster."""
    known = {code_of(hop) for hop in HOPS}
    seen: list[CodeType] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in known:
            seen.append(frame.f_code)

    with _one_write() as write:
        sys.setprofile(note)
        try:
            write()
        finally:
            sys.setprofile(None)
    return seen


def missing_hops(calls: Iterable[CodeType]) -> list[str]:
    """The hops that were not reached after the one above them."""
    rest = iter(calls)
    return [hop for hop in HOPS if not _reaches(rest, code_of(hop))]


def _reaches(calls: Iterator[CodeType], code: CodeType) -> bool:
    return any(each is code for each in calls)


@contextlib.contextmanager
def _one_write() -> Iterator[Callable[[], object]]:
    """A task with a real writer and producer, in virtual time."""
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": 3})
    options = SinkOptions({"bootstrap.servers": cluster.bootstrap_servers}, topic="t")
    rows = pa.record_batch({"value": [b"%d" % row for row in range(100)], "key": [str(row) for row in range(100)]})
    writer = KafkaBatchWriter(options, ColumnPlan(value=0, key=1, fixed_topic="t"))
    usual, POOL._make = POOL._make, lambda _: simulated_producer(cluster)
    try:
        yield lambda: writer.write(iter([rows]))
    finally:
        POOL.close()
        POOL._make = usual


def main() -> None:
    for what, files in (("batching", batching_files()), ("the encoder", encoder_files())):
        classes = classes_in(files)
        print(f"classes of {what}: {len(classes)} in {len(files)} files: {', '.join(classes)}")
    print(f"hops of a row from write(iterator) to the socket: {len(HOPS)}, back up: {ascents() or 'none'}")
    missing = missing_hops(calls_of_one_write())
    print(f"hops that one write did not pass in this order: {missing or 'none'}")
    print(f"lines of the package: {package_lines():,} in {len(files_of('.'))} files")
    print(f"modules that a Spark worker imports: {len(worker_modules())}")


if __name__ == "__main__":
    main()
