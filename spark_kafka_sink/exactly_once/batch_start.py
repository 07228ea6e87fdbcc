"""BatchStart: the state of a query or job when a batch begins, for the tasks that write it and for its commit.

The driver (driver.py) creates one BatchStart per batch, and Spark sends it to the tasks inside the writer. In a stream,
the tasks return it inside their commit messages, because the process that commits a batch is not the one that began it,
and has no other information about the batch's start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.decision_errors import COMPARISON_HINT
from spark_kafka_sink.exactly_once.entries import Batch, Entry, EntryState
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, build_driver_id, build_task_id
from spark_kafka_sink.requests.transaction_description import EMPTY, TransactionDescription

_log = logging.getLogger(__name__)

_NUMERIC_KEY_MESSAGE = (
    "The job was skipped, because a job with idempotencyKey %r and the same number of rows was already committed. The "
    "key is a bare number. If it is a micro-batch id, as in foreachBatch, it is not unique: with a new checkpoint, the "
    "ids start again at 0.\n"
    "- If this batch has other rows than the earlier one, they are not in Kafka: write them with a separate job.\n"
    "- In any case, add the query id to the key, but only once this batch is in the checkpoint's commits. Otherwise, "
    "it would be written once more."
)
_ROWS_SKIPPED_REMEDY = (
    "The rows of this run were skipped, because onReplayMismatch is 'warn'. If some of them are not in Kafka, write "
    f"those with a separate job. {COMPARISON_HINT}"
)


@dataclass(frozen=True)
class BatchStart:
    """The state at the start of a batch, for its tasks and its commit. Immutable; it is pickled into Spark's writer."""

    entry: Entry
    """The newest entry of the query or job in the decision log when the batch started. It lists no transactions."""
    driver_identity: ProducerIdAndEpoch
    """The producer id and epoch under which the driver decides. Brokers reject them once a newer driver has begun."""
    has_user_prefix: bool = False
    """Whether the user has set the prefix."""
    driver_id_state: str = EMPTY
    """The driver id's transaction state at the start.

    Brokers report this state, with `driver_identity`, until this driver decides or aborts the batch, or another
    driver begins.
    """

    @property
    def prefix(self) -> str:
        """The name of the query or job. All of its transactional ids begin with this name."""
        return self.entry.prefix

    @property
    def driver_id(self) -> str:
        """The transactional id of the driver, under which it decides the batch."""
        return build_driver_id(self.prefix, self.entry.driver_number)

    def is_waiting_for_tasks(self, description: TransactionDescription | None) -> bool:
        """Return whether the driver is still waiting for this batch's tasks, and has neither decided nor aborted it.

        The driver is waiting as long as its epoch is the newest one, and nothing has been written under that epoch.

        `description`: the current description of the driver id; None if the brokers do not know the id.
        """
        if description is None:
            return False
        return (description.id_and_epoch, description.state) == (self.driver_identity, self.driver_id_state)

    def build_task_attempt(self, partition: int, attempt: int) -> TaskAttempt:
        """Identify a task attempt by Spark's partition, Spark's attempt number, and this batch's driver."""
        return TaskAttempt(self.entry.generation, partition, attempt)

    def build_task_id(self, partition: int, attempt: int) -> str:
        """Return the transactional id under which a task attempt writes, unless another attempt is using that id."""
        return build_task_id(self.prefix, self.build_task_attempt(partition, attempt))

    def is_decided(self, batch: Batch) -> bool:
        """Return whether a batch with this name is decided: it is already committed, or will be.

        In that case, the tasks count its rows without writing them. The rows may still differ: `check_skipped_batch`
        compares the counts when the tasks have finished.

        Raise ExactlyOnceError if a later micro-batch of the same query is already decided, or if the user has set the
        prefix and its last batch belongs to another query.
        """
        if batch.query_id is None:  # the batch is a job, which has no number to compare
            return self.entry.has_decided(batch)
        if self.entry.state is EntryState.OPEN:
            return False  # no batch has been decided under the prefix
        last_batch = self.entry.batch
        if last_batch.query_id != batch.query_id:
            if self.has_user_prefix:
                raise precommit_errors.build_query_mismatch_error(self.entry, batch)
            # The checkpoint was deleted, and a new query uses the same location.
            return False
        if _get_batch_number(batch) < _get_batch_number(last_batch):
            raise precommit_errors.build_stale_batch_error(self.entry, batch)
        return batch == last_batch

    def check_skipped_batch(self, batch: Batch, summary: BatchSummary, *, tolerate_mismatch: bool) -> None:
        """Check that the tasks have skipped as many rows of each topic as were committed for this batch.

        Raise ExactlyOnceError if the numbers differ, or if somebody other than a driver of this prefix may have written
        the decision.

        `summary`: the number of rows that were skipped, by topic.
        `tolerate_mismatch`: whether to log the error instead of raising it.
        """
        decided_summary = self.entry.find_summary(batch)
        assert decided_summary is not None, "the caller has found the batch's decision"
        if not self.entry.has_proven_decision(batch):
            error = precommit_errors.build_unproven_decision_error(self.entry, batch, decided_summary, summary)
        elif not decided_summary.has_same_row_counts(summary):
            error = precommit_errors.build_replay_mismatch_error(self.entry, batch, decided_summary, summary)
        else:
            if batch.key is not None and batch.key.isdecimal():
                _log.warning(_NUMERIC_KEY_MESSAGE, batch.key)
            return
        if not tolerate_mismatch:
            raise error
        error.remedy = _ROWS_SKIPPED_REMEDY  # the batch does not fail, so it needs no other remedy
        _log.warning("%s", error)


def _get_batch_number(batch: Batch) -> int:
    """Return the number of a micro-batch. Return -1 if it has none, so that it precedes all others."""
    return -1 if batch.batch_id is None else batch.batch_id
