"""Fault scenarios: a producer writes numbered records while a fault is injected, and librdkafka reads the topic.

No record may be lost or duplicated, and the numbers must ascend within each partition. A scenario writes 30,000
records, or a million with SOAK=1.
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
LONG_TIMEOUT_OPTIONS = {"linger.ms": 5, "delivery.timeout.ms": 1_000 * int(WAIT_TIMEOUT_SECONDS)}
"""Options with a long delivery timeout, because brokers may take long to restart on a busy machine."""


def build_numbered_records(start: int, stop: int) -> RecordColumns:
    """Build records with the numbers [start, stop). A value begins with its number; the key is the number % 97."""
    numbers = pa.array(np.arange(start, stop))
    keys = pc.cast(pa.array(np.arange(start, stop) % KEYS), pa.string())
    padding = pa.scalar("." * 50)
    return RecordColumns(value=pc.binary_join_element_wise(pc.cast(numbers, pa.string()), padding, " "), key=keys)


def parse_number(record: StoredRecord) -> int:
    assert record.value is not None
    return int(record.value.split(b" ")[0])


@dataclass
class Writer:
    """Writes numbered records to a topic, a third of them at a time, so that a test can inject a fault in between."""

    producer: KafkaProducer
    topic: str
    records: int = RECORDS
    written: int = 0
    futures: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """The first record number of each future."""

    def write(self, stop: int) -> None:
        while self.written < stop:
            end = min(self.written + CHUNK, stop)
            self.starts.append(self.written)
            self.futures.append(self.producer.send_columns(self.topic, build_numbered_records(self.written, end)))
            self.written = end

    def write_third(self) -> None:
        self.write(min(self.records, self.written + -(-self.records // 3)))

    def write_rest(self) -> None:
        self.write(self.records)

    def write_until_acknowledged(self) -> None:
        """Write chunks until one is acknowledged. On a slow machine, the first ones may exceed the delivery timeout."""

        def is_next_chunk_acknowledged() -> bool:
            self.write(self.written + CHUNK)
            return bool(self.futures[-1].result(RESULT_SECONDS).rows_failed == 0)

        wait_until(is_next_chunk_acknowledged)

    def results(self) -> list[Any]:
        self.producer.flush(RESULT_SECONDS)
        return [future.result(RESULT_SECONDS) for future in self.futures]


def run(  # noqa: PLR0913 - the parts of a scenario
    config: Mapping[str, object],
    topic: str,
    inject: Callable[[], None],
    repair: Callable[[], None] = lambda: None,
    *,
    records: int = RECORDS,
    continues: bool = False,
    check: Callable[[KafkaProducer], None] = lambda _: None,
) -> list[Any]:
    """Write a third of the records before the fault, a third during it, and the rest after its repair.

    `continues`: wait until the second third is acknowledged before the repair. `check`: called with the producer at the
    end. Return the results of send_columns.
    """
    with KafkaProducer(config) as producer:
        writer = Writer(producer, topic, records)
        writer.write_third()
        producer.flush(RESULT_SECONDS)
        inject()
        writer.write_third()
        if continues:
            writer.results()
        repair()
        writer.write_rest()
        results = writer.results()
        check(producer)
        return results


def assert_all_stored_once_in_order(bootstrap: str, topic: str, results: list[Any], records: int = RECORDS) -> None:
    """Assert that each record is stored exactly once and in order, and that the producer reports it as written."""
    for result in results:
        result.raise_for_failures()
    assert sum(result.rows_written for result in results) == records
    stored = read_topic(bootstrap, topic)
    numbers = Counter(map(parse_number, stored))
    assert_no_duplicates_and_ordered(stored)
    assert len(numbers) == records, f"{records - len(numbers)} records are lost"


def assert_no_duplicates_and_ordered(stored: list[StoredRecord]) -> None:
    last_numbers: dict[int, int] = {}
    for record in stored:
        number = parse_number(record)
        previous = last_numbers.get(record.partition, -1)
        assert number != previous, f"record {number} is duplicated in partition {record.partition}"
        assert number > previous, f"record {number} follows {previous} in partition {record.partition}"
        last_numbers[record.partition] = number
