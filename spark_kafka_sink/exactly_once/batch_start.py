"""BatchStart: the driver's knowledge at the start of a batch, for its tasks and for the commit.

The driver (driver.py) creates one BatchStart for each batch. It travels with the writer to the tasks, and with their
commit messages to the process that commits. In a stream that is another process, which knows nothing else of the start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.batch_content import BatchContent
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, driver_id, task_id
from spark_kafka_sink.requests.transaction_description import EMPTY, TransactionDescription

_log = logging.getLogger(__name__)

_NUMERIC_KEY_MESSAGE = (
    "The job was skipped, because a job with idempotencyKey %r and the same number of rows was already committed. The "
    "key is a bare number. If it is a micro-batch id, as in foreachBatch, a new checkpoint starts again at 0, and its "
    "batches have the keys of other rows. Add the id of the query to the key."
)


@dataclass(frozen=True)
class BatchStart:
    """The entry and the driver identity at the start of a batch. Immutable, and pickled into the writer."""

    entry: Entry
    """The newest entry of the prefix when the batch started. It has no transactions."""
    driver_identity: ProducerIdAndEpoch
    """Producer id and epoch under which the driver decides. Brokers reject it after a newer driver has begun."""
    has_user_prefix: bool = False
    state: str = EMPTY
    """The state of the driver id, as brokers describe it until this driver decides or a newer driver begins."""

    @property
    def prefix(self) -> str:
        return self.entry.prefix

    @property
    def driver_id(self) -> str:
        return driver_id(self.prefix, self.entry.driver_number)

    def is_waiting_for_tasks(self, description: TransactionDescription | None) -> bool:
        """Return whether the driver still waits for the tasks of this batch. `description`: of the driver id.

        It does while its epoch is the newest and nothing was written under this epoch.
        """
        if description is None:
            return False
        return (description.id_and_epoch, description.state) == (self.driver_identity, self.state)

    def task_attempt(self, partition: int, attempt: int) -> TaskAttempt:
        return TaskAttempt(self.entry.generation, partition, attempt)

    def task_id(self, partition: int, attempt: int) -> str:
        return task_id(self.prefix, self.task_attempt(partition, attempt))

    def is_committed(self, batch: Batch) -> bool:
        """Return whether a batch of this name is committed. Raise ExactlyOnceError if it must not be written at all.

        `check_skipped_batch` checks whether it has the same rows, once the tasks have counted them.
        """
        if batch.query_id is None:
            return self.entry.has_decided(batch)
        last = self.entry.batch
        if self.entry.state is EntryState.OPEN:
            return False
        if last.query_id != batch.query_id:
            if self.has_user_prefix:
                raise precommit_errors.build_query_mismatch_error(self.entry, batch)
            return False
        if _batch_number(batch) < _batch_number(last):
            raise precommit_errors.build_stale_batch_error(self.entry, batch)
        return batch == last

    def check_skipped_batch(self, batch: Batch, content: BatchContent, *, tolerate_mismatch: bool) -> None:
        """Check that the rows that tasks have skipped are those that a driver of the prefix decided as this batch.

        `content`: of the skipped rows. If they differ, or if it is unknown who decided the batch, this raises
        ExactlyOnceError, or logs the error if `tolerate_mismatch` is set.
        """
        decided = self.entry.find_content(batch)
        if not self.entry.is_proven(batch):
            error = precommit_errors.build_unproven_decision_error(self.entry, batch, decided, content)
        elif decided is None or not decided.has_same_row_counts(content):
            error = precommit_errors.build_replay_mismatch_error(self.entry, batch, decided, content)
        else:
            if batch.key is not None and batch.key.isdecimal():
                _log.warning(_NUMERIC_KEY_MESSAGE, batch.key)
            return
        if not tolerate_mismatch:
            raise error
        _log.warning("%s The query continues, because the option onReplayMismatch is 'warn'.", error)


def _batch_number(batch: Batch) -> int:
    return -1 if batch.batch_id is None else batch.batch_id
