"""An attempt of a task that begins after its batch was decided or aborted: no driver would end its transaction.

Spark kills attempts that have lost, but not at once. So an attempt asks twice whether the driver waits for it:

    before it gets its transactional id    because a task of the next batch may have this id by now
    after that, before it begins           because the driver looks later than now for what is left over, and finds the
                                           id, with a transaction or without one: whatever happens to the attempt,
                                           nothing stays open

With the first question it asks whether its id is in use by another attempt of the same task. When Spark runs a stage
again, both have the same number, and to take the id would abort what the other has written, and perhaps reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.names import TaskName, second_attempt_name, task_id
from spark_kafka_sink.exactly_once.query_transactions import can_write
from spark_kafka_sink.producer.transactions.transaction_description import EMPTY, TransactionDescription

Describe = Callable[[Sequence[str]], Mapping[str, TransactionDescription]]
"""What brokers know of these ids: a task asks over the connections of its producer."""


def free_name(describe: Describe, start: BatchStart, task: TaskName, task_attempt_id: int) -> TaskName:
    """The name under which this attempt writes. ExactlyOnceError if the driver waits for no task any more."""
    wanted = task_id(start.prefix, task)
    found = describe([start.driver_id, wanted])
    _refuse_if_late(start, found.get(start.driver_id))
    holder = found.get(wanted)
    if holder is None or not can_write(holder):
        return task
    return task._replace(attempt=second_attempt_name(task.attempt, task_attempt_id))


def refuse_if_late(describe: Describe, start: BatchStart) -> None:
    _refuse_if_late(start, describe([start.driver_id]).get(start.driver_id))


def _refuse_if_late(start: BatchStart, driver: TransactionDescription | None) -> None:
    if driver is None or (driver.id_and_epoch, driver.state) != (start.driver, EMPTY):
        raise ExactlyOnceError(
            "This attempt came too late: its batch is over, or a newer driver has taken over the query with the prefix "
            f"{start.prefix}. It wrote nothing."
        )
