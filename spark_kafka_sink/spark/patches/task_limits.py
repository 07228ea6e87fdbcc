"""The options that limit the number of tasks or their rate: maxTasks, distributionTasks and maxBytesPerSecond.

The tasks of a write share maxBytesPerSecond equally, so the number of concurrent tasks must be known before the write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.concurrent_tasks import find_max_concurrent_tasks
from spark_kafka_sink.spark.constants import CONCURRENT_TASKS_OPTION
from spark_kafka_sink.spark.patches.recorded_writer import RecordedCalls, get_writer_dataframe

# Option names in lowercase, as recorded calls have them.
_MAX_TASKS_OPTION = "maxtasks"
_MAX_BYTES_PER_SECOND_OPTION = "maxbytespersecond"
_DISTRIBUTION_TASKS_OPTION = "distributiontasks"
_MAX_TASKS_REQUIRED_MESSAGE = (
    "Option 'maxBytesPerSecond' requires 'maxTasks' or 'distributionTasks' if the number of tasks that share the limit "
    "is unknown: with Spark Connect, with dynamic allocation (spark.dynamicAllocation.enabled), or before the first "
    "executor has registered. Set maxTasks, or distributionTasks if distribution is set."
)


def set_concurrent_tasks_option(writer: Any, recorded_calls: RecordedCalls) -> None:
    """Set the internal option with the number of concurrent tasks, if an option limits the tasks or their rate.

    The number is the smallest of maxTasks, distributionTasks and, with maxBytesPerSecond, the number of tasks that the
    cluster can run concurrently. Each task's share of maxBytesPerSecond is computed from it.

    Raise ConfigurationError if maxBytesPerSecond is set and none of these numbers is known.
    """
    options = recorded_calls.options()
    task_limits = [
        _parse_task_count(options[name]) for name in (_MAX_TASKS_OPTION, _DISTRIBUTION_TASKS_OPTION) if name in options
    ]
    if _MAX_BYTES_PER_SECOND_OPTION in options:
        task_slots = find_max_concurrent_tasks(get_writer_dataframe(writer).sparkSession)
        if task_slots is not None:
            task_limits.append(task_slots)
        elif not task_limits:
            raise ConfigurationError(_MAX_TASKS_REQUIRED_MESSAGE)
    if task_limits:
        writer.option(CONCURRENT_TASKS_OPTION, str(min(task_limits)))


def _parse_task_count(text: str) -> int:
    """Parse a number of tasks. Return 1 if it is invalid, because the option checks that follow report the error."""
    try:
        return max(int(text), 1)
    except ValueError:
        return 1


def coalesce_to_max_tasks(frame: Any, recorded_calls: RecordedCalls) -> Any:
    """Limit the number of tasks to the option maxTasks if it is set. The option must have been checked."""
    max_tasks = parse_max_tasks(recorded_calls.options())
    return frame if max_tasks is None else frame.coalesce(max_tasks)


def parse_max_tasks(options: Mapping[str, str]) -> int | None:
    """Return the option maxTasks, or None if it is not set. The option must have been checked."""
    return int(options[_MAX_TASKS_OPTION]) if _MAX_TASKS_OPTION in options else None
