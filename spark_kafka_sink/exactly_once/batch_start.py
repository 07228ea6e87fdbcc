"""What the driver knows when a batch begins, and what follows from it for the batch's tasks.

A BatchStart is made once for each batch by the driver (driver.py). It travels with the writer to the tasks, and with
their commit messages to the process that commits: in a stream that is another one, which knows nothing else of it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.content import Content
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.transaction_names import TaskName, driver_id, task_id
from spark_kafka_sink.requests.transaction_description import EMPTY, TransactionDescription

_log = logging.getLogger(__name__)

_NUMBER_AS_KEY_MESSAGE = (
    "The job was skipped, because a job with idempotencyKey %r and the same number of rows is committed already. The "
    "key is a bare number. If it is the number of a micro-batch, as in foreachBatch, a new checkpoint counts from "
    "0 again, and its batches have the keys of other rows: put the query's id into the key as well."
)


@dataclass(frozen=True)
class BatchStart:
    entry: Entry
    """The newest entry of the prefix, without transactions."""
    driver: ProducerIdAndEpoch
    """Under which the driver decides. Brokers refuse it when a newer driver has begun."""
    is_given: bool = False
    state: str = EMPTY
    """What brokers say of the driver's id until it decides, or a newer driver begins."""

    @property
    def prefix(self) -> str:
        return self.entry.prefix

    @property
    def driver_id(self) -> str:
        return driver_id(self.prefix, self.entry.driver_number)

    def awaits_tasks(self, known: TransactionDescription | None) -> bool:
        """`known`: of the driver's id. Is its epoch the newest, and was nothing written under it since it was given?"""
        return known is not None and (known.id_and_epoch, known.state) == (self.driver, self.state)

    def task(self, partition: int, attempt: int) -> TaskName:
        return TaskName(self.entry.generation, partition, attempt)

    def task_id(self, partition: int, attempt: int) -> str:
        return task_id(self.prefix, self.task(partition, attempt))

    def is_committed(self, batch: Batch) -> bool:
        """Is a batch of this name in Kafka already? ExactlyOnceError, if it must not be written at all.

        Whether it is the same batch is seen when its rows were counted: `check_passed_over`.
        """
        if batch.query is None:
            return self.entry.has_committed(batch)
        last = self.entry.batch
        if self.entry.state is EntryState.OPEN:
            return False
        if last.query != batch.query:
            if self.is_given:
                raise refusals.other_query(self.entry, batch)
            return False
        if _number(batch) < _number(last):
            raise refusals.older_batch(self.entry, batch)
        return batch == last

    def check_passed_over(self, batch: Batch, counted: Content, *, tolerant: bool) -> None:
        """Compare the rows that tasks have passed over with those that were decided as this batch, and look whether a
        driver of the prefix has decided that."""
        decided = self.entry.content_of(batch)
        if not self.entry.is_proven(batch):
            refusal = refusals.unproven_decision(self.entry, batch, decided, counted)
        elif decided is None or not decided.is_same(counted):
            refusal = refusals.replay_mismatch(self.entry, batch, decided, counted)
        else:
            if batch.key is not None and batch.key.isdecimal():
                _log.warning(_NUMBER_AS_KEY_MESSAGE, batch.key)
            return
        if not tolerant:
            raise refusal
        _log.warning("%s The option onReplayMismatch is 'warn', so the query goes on.", refusal)


def _number(batch: Batch) -> int:
    return -1 if batch.number is None else batch.number
