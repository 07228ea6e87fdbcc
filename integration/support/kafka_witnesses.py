"""Kafka's own Java clients as witnesses: what they read from a topic must equal what librdkafka reads.

VerifiableConsumer and TransactionalMessageCopier are tools of Kafka's system tests. Each runs in a JVM of its own, and
prints events in JSON lines.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from integration.support.artifacts import kafka_classpath
from integration.support.kafka_cluster import JVM, KafkaCluster, read_log_tail
from integration.support.librdkafka import StoredRecord, create_topic, read_topic
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

Event = dict[str, Any]
T = TypeVar("T")


class KafkaTool:
    """A running tool of Kafka. It is a context manager, and is stopped at the end of the block."""

    def __init__(self, main_class: str, arguments: Sequence[str], folder: Path) -> None:
        """`folder`: for the output and the log of the tool."""
        folder.mkdir(parents=True, exist_ok=True)
        self._name = main_class.rpartition(".")[2]
        self._output, self._log = folder / f"{self._name}.jsonl", folder / f"{self._name}.log"
        command = ["java", *JVM, "-cp", kafka_classpath(), main_class, *arguments]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=log)

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def events(self) -> list[Event]:
        """Return the events that the tool has printed."""
        complete_lines = self._output.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in complete_lines if line.startswith("{")]

    def stop_when(self, condition: Callable[[list[Event]], bool]) -> list[Event]:
        """Stop the tool when its events fulfil the condition, or wait until it ends. Return all its events."""
        wait_until(lambda: self._process.poll() is not None or condition(self.events()), self._describe)
        self._process.terminate()
        self._process.wait(WAIT_TIMEOUT_SECONDS)
        return self.events()

    def _describe(self) -> str:
        return f"{self._name} printed {self.events()[-3:]}\n{read_log_tail(self._log)}"


class VerifiableConsumer(KafkaTool):
    """Consumes a topic from its beginning, also while it is written."""

    def __init__(self, kafka: KafkaCluster, topic: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "consumer.properties"
        config.write_text("isolation.level=read_committed\n")
        arguments = ["--bootstrap-server", kafka.bootstrap(), "--topic", topic, "--group-id", _unique_name("witness")]
        arguments += ["--verbose", "--command-config", str(config)]
        super().__init__("org.apache.kafka.tools.VerifiableConsumer", arguments, folder)

    def check(self, stored: Sequence[StoredRecord]) -> None:
        """Wait until the consumer has read the last of the stored records, and check that it has read just these.

        It may read a record again after its group's coordinator was killed, because it could not commit the offset.
        """
        ends = {record.partition: record.offset for record in stored}

        def has_read_all(events: list[Event]) -> bool:
            offsets: dict[int, int] = {}
            for event in _find_records(events):
                offsets[event["partition"]] = max(event["offset"], offsets.get(event["partition"], -1))
            return all(offsets.get(partition, -1) >= end for partition, end in ends.items())

        found = {
            (e["partition"], e["offset"], e["key"], e["value"]) for e in _find_records(self.stop_when(has_read_all))
        }
        expected = {(r.partition, r.offset, _decode(r.key), _decode(r.value)) for r in stored}
        _check_equal(f"{self._name} and librdkafka", found, expected)


class TransactionalMessageCopier(KafkaTool):
    """Copies the committed records of a topic to another topic in transactions, each to the same partition."""

    def __init__(self, kafka: KafkaCluster, topic: str, partitions: int, folder: Path) -> None:
        self._bootstrap = kafka.bootstrap()
        self._copy = create_topic(
            self._bootstrap, partitions=partitions, replicas=kafka.brokers, for_java_producer=True
        )
        arguments = ["--broker-list", self._bootstrap, "--input-topic", topic, "--output-topic", self._copy]
        name = _unique_name("copier")
        arguments += ["--transactional-id", name, "--consumer-group", name, "--use-group-metadata"]
        # In group mode the copier reads all partitions and ignores the required --input-partition.
        arguments += ["--group-mode", "--input-partition", "0"]
        super().__init__("org.apache.kafka.tools.TransactionalMessageCopier", arguments, folder)

    def check(self, stored: Sequence[StoredRecord]) -> None:
        """Wait until the copier finds no more records, and check that it has copied just the stored ones, in order."""

        def has_read_all(events: list[Event]) -> bool:
            # An event precedes each poll, so two equal numbers mean that the poll between them has returned nothing.
            copied: list[int] = [event["totalProcessed"] for event in events if event.get("stage") == "ProcessLoop"]
            return len(copied) > 1 and len(stored) <= copied[-2] == copied[-1]

        self.stop_when(has_read_all)
        _check_equal(
            f"the copy by {self._name} and the topic", _rows(read_topic(self._bootstrap, self._copy)), _rows(stored)
        )


def _unique_name(role: str) -> str:
    """Return a name for a group or a transactional id that no earlier tool has used."""
    return f"{role}-{uuid.uuid4().hex[:12]}"


def _find_records(events: Iterable[Event]) -> Iterable[Event]:
    return (event for event in events if event.get("name") == "record_data")


def _rows(records: Iterable[StoredRecord]) -> set[tuple[int, int, bytes | None, bytes | None]]:
    """Return the partition, position in the partition, key and value of each record."""
    positions: defaultdict[int, int] = defaultdict(int)
    rows = set()
    for record in records:
        rows.add((record.partition, positions[record.partition], record.key, record.value))
        positions[record.partition] += 1
    return rows


def _decode(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _check_equal(names: str, found: set[Any], expected: set[Any]) -> None:
    assert found == expected, f"{names} differ: {sorted(found ^ expected, key=repr)[:3]}"
    print(f"{names} have the same {len(expected):,} records")
