"""Checks that stop late task attempts: attempts whose batch is decided or aborted before or while they write.

An attempt is one execution of a Spark task. It writes in a transaction under its own transactional id. The driver of
the query waits until Spark has accepted one attempt of each task, and then decides or aborts the batch. Spark kills
the other attempts, but not immediately. An attempt therefore checks twice whether the driver is still waiting:

    1. Before it initializes its transactional id, because a task of the next batch may already own the id.
    2. After it has initialized the id, before it begins its transaction. If the driver is still waiting at this point,
       it has yet to list the transactional ids (`QueryTransactions.take_over`, `Driver._execute_decision`). Its list
       will contain this id, with or without an open transaction. So if the attempt dies, the driver can abort its
       transaction.

The first check also detects whether another attempt of the same task is using the same id. When Spark reruns a stage,
it numbers the attempts from 0 again, so a new attempt can have the number of one that is still running or has already
reported its rows to the driver. InitProducerId under the same id would abort that attempt's transaction.

An attempt that is fenced while it writes checks once more, because brokers do not report why it was fenced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.clients import create_client
from spark_kafka_sink.exactly_once.transaction_aborts import can_write
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, build_task_id, compute_rerun_attempt_number
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.verdicts import BATCH_OWNERSHIP_LOST_ERRORS

_log = logging.getLogger(__name__)

DescribeTransactions = Callable[[Sequence[str]], Mapping[str, TransactionDescription]]
"""Describes transactional ids over the connections of the task's producer. Ids that brokers do not know are omitted."""


def check_and_renumber_attempt(
    describe: DescribeTransactions, batch_start: BatchStart, task_attempt: TaskAttempt, spark_attempt_id: int
) -> TaskAttempt:
    """Check that the driver is waiting, and return `task_attempt`, renumbered if its transactional id is in use.

    Raise ExactlyOnceError if the batch has already been decided or aborted, or a newer driver has taken over.

    `spark_attempt_id`: Spark's taskAttemptId, which is unique within the Spark application.
    """
    # Describe both ids in one call, to save a round trip, because every task attempt runs this check.
    transactional_id = build_task_id(batch_start.prefix, task_attempt)
    descriptions = describe([batch_start.driver_id, transactional_id])
    if not batch_start.is_waiting_for_tasks(descriptions.get(batch_start.driver_id)):
        raise precommit_errors.build_late_attempt_error(batch_start.prefix, "It wrote nothing.")
    task_id_description = descriptions.get(transactional_id)
    # The id is in use if its last owner has an open transaction, or may still begin one.
    is_in_use = task_id_description is not None and can_write(task_id_description)
    if not is_in_use:
        return task_attempt
    rerun_number = compute_rerun_attempt_number(task_attempt.attempt, spark_attempt_id)
    return task_attempt._replace(attempt=rerun_number)


def raise_if_late(describe: DescribeTransactions, batch_start: BatchStart) -> None:
    """Raise ExactlyOnceError if the driver is no longer waiting for the batch's tasks.

    In that case, the batch has already been decided or aborted, or a newer driver has taken over.
    """
    if not batch_start.is_waiting_for_tasks(describe([batch_start.driver_id]).get(batch_start.driver_id)):
        raise precommit_errors.build_late_attempt_error(batch_start.prefix, "It wrote nothing.")


def raise_if_late_attempt_was_fenced(
    error: BaseException, config: ClientConfig, batch_start: BatchStart, timeout_ms: float
) -> None:
    """Raise ExactlyOnceError from `error` if a write was fenced because its batch is already decided or aborted.

    Return without raising if `error` does not mean that the producer was fenced, if the driver is still waiting for the
    batch's tasks, or if the driver's state cannot be fetched. The caller then reports `error` itself.

    `error`: the error of the write.
    `timeout_ms`: how long fetching the driver's state may go without progress.
    """
    if not _is_fencing_error(error):
        return
    try:
        # Use a new client, because a fenced producer can send no more requests.
        with create_client(config, timeout_ms=timeout_ms) as client:
            description = describe_transactions(client, [batch_start.driver_id]).get(batch_start.driver_id)
    except KafkaSinkError as lookup_error:
        _log.warning(
            "Could not find out whether there is a newer driver (prefix %s): %s", batch_start.prefix, lookup_error
        )
        return
    if not batch_start.is_waiting_for_tasks(description):
        raise precommit_errors.build_late_attempt_error(batch_start.prefix, "Its rows are not committed.") from error


def _is_fencing_error(error: BaseException | None) -> bool:
    """Return whether the error or one of its causes means that the producer id, epoch or transaction has changed."""
    while error is not None:
        if isinstance(error, BrokerError) and error.code in BATCH_OWNERSHIP_LOST_ERRORS:
            return True
        error = error.__cause__
    return False
