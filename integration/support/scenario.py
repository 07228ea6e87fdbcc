"""One fault scenario: a producer writes numbered records while something goes wrong; a witness counts what arrived.

Every record has a key and a number that grows. Nothing may be lost (L), nothing doubled (D), and within each partition
the numbers must grow. SOAK=1 writes a million records for each scenario, otherwise a few thousand do.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from integration.support.librdkafka import StoredRecord, read_topic
from spark_kafka_sink import KafkaProducer, RecordColumns
from tests.waiting import WAIT_TIMEOUT_SECONDS, wait_until

RECORDS = 1_000_000 if os.environ.get("SOAK") else 30_000
CHUNK = 1_000
KEYS = 97
RESULT_SECONDS = WAIT_TIMEOUT_SECONDS
PATIENT = {"linger.ms": 5, "delivery.timeout.ms": 1_000 * int(WAIT_TIMEOUT_SECONDS)}
"""For all but the tests of the time limit itself: brokers take long to come back on a machine with other work."""


def numbered(start: int, stop: int) -> RecordColumns:
    """Records start..stop: the number is the value, its key one of 97."""
    numbers = pa.array(np.arange(start, stop))
    keys = pc.cast(pa.array(np.arange(start, stop) % KEYS), pa.string())
    padding = pa.scalar("." * 50)
    return RecordColumns(value=pc.binary_join_element_wise(pc.cast(numbers, pa.string()), padding, " "), key=keys)


def number_of(record: StoredRecord) -> int:
    assert record.value is not None
    return int(record.value.split(b" ")[0])


@dataclass
class Writer:
    """Writes in thirds, so that a fault can be put in the middle: before() fault during() healed after()."""

    producer: KafkaProducer
    topic: str
    records: int = RECORDS
    written: int = 0
    futures: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """The first number of each future's records."""

    def write(self, stop: int) -> None:
        while self.written < stop:
            end = min(self.written + CHUNK, stop)
            self.starts.append(self.written)
            self.futures.append(self.producer.send_columns(self.topic, numbered(self.written, end)))
            self.written = end

    def third(self) -> None:
        self.write(min(self.records, self.written + -(-self.records // 3)))

    def rest(self) -> None:
        self.write(self.records)

    def write_until_taken(self) -> None:
        """One chunk after the other, until one is acknowledged: on a slow machine the first may come too late."""

        def is_taken() -> bool:
            self.write(self.written + CHUNK)
            return bool(self.futures[-1].result(RESULT_SECONDS).rows_failed == 0)

        wait_until(is_taken)

    def results(self) -> list[Any]:
        self.producer.flush(RESULT_SECONDS)
        return [future.result(RESULT_SECONDS) for future in self.futures]


def run(  # noqa: PLR0913 - the parts of a scenario
    config: Mapping[str, object],
    topic: str,
    fault: Callable[[], None],
    heal: Callable[[], None] = lambda: None,
    *,
    records: int = RECORDS,
    survives: bool = False,
    check: Callable[[KafkaProducer], None] = lambda _: None,
) -> list[Any]:
    """A third, the fault, a third in the middle of it, the cure, the rest. Return the results of send_columns.

    `survives`: the third in the middle must be acknowledged before the cure. `check` looks at the producer at the end.
    """
    with KafkaProducer(config) as producer:
        writer = Writer(producer, topic, records)
        writer.third()
        producer.flush(RESULT_SECONDS)
        fault()
        writer.third()
        if survives:
            writer.results()
        heal()
        writer.rest()
        results = writer.results()
        check(producer)
        return results


def assert_all_stored_once_in_order(bootstrap: str, topic: str, results: list[Any], records: int = RECORDS) -> None:
    """No record is lost (L0) or stored twice (D0), all are in order, and the producer reports each as written."""
    for result in results:
        result.raise_for_failures()
    assert sum(result.rows_written for result in results) == records
    stored = read_topic(bootstrap, topic)
    numbers = Counter(map(number_of, stored))
    assert_nothing_doubled_and_ordered(stored)
    assert len(numbers) == records, f"{records - len(numbers)} records are lost"


def assert_nothing_doubled_and_ordered(stored: list[StoredRecord]) -> None:
    last: dict[int, int] = {}
    for record in stored:
        number = number_of(record)
        before = last.get(record.partition, -1)
        assert number != before, f"record {number} is twice in partition {record.partition}"
        assert number > before, f"record {number} comes after {before} in partition {record.partition}"
        last[record.partition] = number
