"""The number of tasks that can run concurrently in a session. These tasks share the limit `maxBytesPerSecond`.

This is the number of tasks that Spark's scheduler can run on the registered executors. On YARN and Kubernetes, some
executors may register only after the write has started. The result is therefore at least the number of tasks that the
requested executors can run.

`sparkContext.defaultParallelism` cannot be used, because it returns `spark.default.parallelism` if that is set, and
ignores `spark.task.cpus`.
"""

from __future__ import annotations

from typing import Any

_DYNAMIC_ALLOCATION_CONF = "spark.dynamicAllocation.enabled"
"""The setting with which Spark changes the number of executors while a job runs."""


def find_max_concurrent_tasks(session: Any) -> int | None:
    """Return how many of the session's tasks can run concurrently, or None if the number is unknown.

    The number is unknown:

    - with Spark Connect
    - with dynamic allocation
    - before the first executor has registered, unless the job requested a number of executors
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return None
    if session.conf.get(_DYNAMIC_ALLOCATION_CONF, "false").lower() == "true":
        return None
    slot_count = _count_registered_task_slots(session)
    if not _is_local(session):
        slot_count = max(slot_count, _count_requested_task_slots(session))
    return slot_count or None


def _is_local(session: Any) -> bool:
    master: str = session.sparkContext.master
    return master == "local" or master.startswith("local[")


def _count_registered_task_slots(session: Any) -> int:
    """Return how many tasks the registered executors can run concurrently; 0 if the JVM does not provide the number."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # not installed with some Connect clients

    context = session.sparkContext._jsc.sc()
    try:
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))
    except Py4JError:
        return 0


def _count_requested_task_slots(session: Any) -> int:
    """Return how many tasks the requested executors can run concurrently, or 0 if no number was requested."""
    executor_count = int(session.conf.get("spark.executor.instances", "0"))
    cores_per_executor = int(session.conf.get("spark.executor.cores", "1"))
    cores_per_task = int(session.conf.get("spark.task.cpus", "1"))
    return executor_count * (cores_per_executor // cores_per_task)
