"""An attempt of a task whose batch is decided or aborted before it begins, or while it writes: no driver waits for it.

Spark kills attempts that have lost, but not at once. So an attempt asks twice
whether the driver waits for it:

    before it gets its transactional id    because a task of the next batch may have this id by now
    after that, before it begins           because the driver looks later than now for what is left over, and finds the
                                           id, with a transaction or without one: whatever happens to the attempt,
                                           nothing stays open

With the first question it asks whether its id is in use by another attempt of the same task. When Spark runs a stage
again, both have the same number, and to take the id would abort what the other has written, and perhaps reported.

An attempt that is fenced while it writes asks once more, since brokers do not say why it was fenced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import BrokerError, KafkaSinkError
from spark_kafka_sink.exactly_once import refusals
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.clients import new_client
from spark_kafka_sink.exactly_once.leftovers import can_write
from spark_kafka_sink.exactly_once.transaction_names import TaskName, second_attempt_name, task_id
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.verdicts import BATCH_OWNERSHIP_LOST_ERRORS

_log = logging.getLogger(__name__)

Describe = Callable[[Sequence[str]], Mapping[str, TransactionDescription]]
"""What brokers know of these ids: a task asks over the connections of its producer."""


def free_name(describe: Describe, start: BatchStart, task: TaskName, task_attempt_id: int) -> TaskName:
    """The name under which this attempt writes. ExactlyOnceError if the driver waits for no task any more."""
    wanted = task_id(start.prefix, task)
    found = describe([start.driver_id, wanted])
    if not start.awaits_tasks(found.get(start.driver_id)):
        raise refusals.late_attempt(start.prefix, "It wrote nothing.")
    holder = found.get(wanted)
    if holder is None or not can_write(holder):
        return task
    return task._replace(attempt=second_attempt_name(task.attempt, task_attempt_id))


def refuse_if_late(describe: Describe, start: BatchStart) -> None:
    if not start.awaits_tasks(describe([start.driver_id]).get(start.driver_id)):
        raise refusals.late_attempt(start.prefix, "It wrote nothing.")


def refuse_if_fenced_late(error: BaseException, config: ClientConfig, start: BatchStart, timeout_ms: float) -> None:
    """Raise the refusal, caused by `error`, if a write ended by it because the driver does not wait for it any more.

    Over a connection of its own: a producer that is fenced asks nothing more. If the driver still waits, or brokers do
    not say, `error` is all that is known.
    """
    if not _says_fenced(error):
        return
    try:
        with new_client(config, timeout_ms=timeout_ms) as client:
            driver = describe_transactions(client, [start.driver_id]).get(start.driver_id)
    except KafkaSinkError as failure:
        _log.warning("prefix %s: it is not known whether there is a newer driver: %s", start.prefix, failure)
        return
    if not start.awaits_tasks(driver):
        raise refusals.late_attempt(start.prefix, "What it wrote is not committed.") from error


def _says_fenced(error: BaseException | None) -> bool:
    """Does it, or one of its causes, say that the id, the epoch or the transaction is not the caller's any more?"""
    while error is not None:
        if isinstance(error, BrokerError) and error.code in BATCH_OWNERSHIP_LOST_ERRORS:
            return True
        error = error.__cause__
    return False
