"""An exactly-once driver without Spark, as a program that tests suspend, resume or kill.

    python -m integration.support.plain_driver BOOTSTRAP TOPIC FOLDER NAME TASKS

The driver writes consecutive batches, each with TASKS tasks. It ends after a batch if the folder contains a file
`stop`. Before it commits a batch, it creates the file `attempts/BATCH NAME`. After the commit it creates
`commits/BATCH`, as Spark does. If the environment variable PYKAFKA_TEST_HISTORY names a folder, it records the history
of its decision log there.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from integration.support.driver_process import find_newest_batch_id
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.late_attempts import raise_if_late_attempt_was_fenced
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import Query
from tests.exactly_once.log_history import HISTORY_FOLDER, record_process

REJECTED_STATUS = 3
"""The exit status after a KafkaSinkError."""
PARTITIONS = 2
"""Number of partitions of the topic."""


@dataclass
class Brokers:
    """A real Kafka with the interface that the tests on the embedded broker use."""

    bootstrap_servers: str


def format_value(number: int, task: int, name: str) -> str:
    return f"{number}/{task}/{name}"


def main() -> int:
    if HISTORY_FOLDER in os.environ:
        record_process(Path(os.environ[HISTORY_FOLDER]))
    bootstrap, topic, folder, name, tasks = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    brokers = cast(EmbeddedBroker, Brokers(bootstrap))
    query = Query(brokers, prefix=topic, data=topic, query=f"query-of-{topic}", name=name)
    number = find_newest_batch_id(folder / "commits") + 1
    while True:
        try:
            write_batch(query, number, folder, tasks)
        except KafkaSinkError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return REJECTED_STATUS
        (folder / "commits" / str(number)).touch()
        number += 1
        if (folder / "stop").exists():
            return 0


def write_batch(query: Query, number: int, folder: Path, tasks: int) -> None:
    """Write and commit one batch, or check it if it is already committed. Abort it if that fails."""
    start = query.begin()
    summary = BatchSummary.from_row_counts({query.data: tasks}, tasks)
    if start.is_decided(query.batch(number)):
        start.check_skipped_batch(query.batch(number), summary, tolerate_mismatch=False)
        return
    try:
        transactions = write_task_rows(query, start, number, tasks)
        (folder / "attempts" / f"{number} {query.name}").touch()
        with Driver(query.settings) as driver:
            driver.commit(start, query.batch(number), transactions, summary)
    except KafkaSinkError:
        query.abort(start, number)
        raise


def write_task_rows(query: Query, start: BatchStart, number: int, tasks: int) -> list[TransactionIdentity]:
    """Write one record per task, all with the same producer, like a Python worker of Spark that is reused."""
    transactions = []
    producer = query.attempt(start, 0, 0)
    try:
        for task in range(tasks):
            if task:
                producer.init_transactions(start.build_task_id(task, 0))
            producer.begin_transaction()
            producer.send(
                ProducerRecord(query.data, format_value(number, task, query.name), partition=task % PARTITIONS)
            )
            transaction = producer.prepare_transaction()
            assert transaction is not None
            transactions.append(transaction)
    except KafkaSinkError as error:
        config = producer.config
        raise_if_late_attempt_was_fenced(error, config.client_config(), start, config.max_block_ms)
        raise
    finally:
        producer.close(timeout=0)
    return transactions


if __name__ == "__main__":
    sys.exit(main())
