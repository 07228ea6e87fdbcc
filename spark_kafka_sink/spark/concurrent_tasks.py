"""How many tasks of this session may run at one time: these share `maxBytesPerSecond`.

`sparkContext.defaultParallelism` is another number: it is `spark.default.parallelism` where that is set, and it knows
nothing of `spark.task.cpus`. So Spark's scheduler is asked how many tasks the executors that there are can run. On YARN
and Kubernetes some may come later than the write begins, so those that the job has asked for are counted too.
"""

from __future__ import annotations

from typing import Any

_DYNAMIC = "spark.dynamicAllocation.enabled"


def max_concurrent_tasks(session: Any) -> int | None:
    """None where it is not known: with Spark Connect, with dynamic allocation, and before there is any executor."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return None
    if session.conf.get(_DYNAMIC, "false").lower() == "true":
        return None
    here = _of_executors(session)
    return (here if _is_local(session) else max(here, _asked_for(session))) or None


def _is_local(session: Any) -> bool:
    master: str = session.sparkContext.master
    return master == "local" or master.startswith("local[")


def _of_executors(session: Any) -> int:
    """Of those that have registered by now; 0 where the JVM does not let us ask."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # a client of Connect need not have it

    context = session.sparkContext._jsc.sc()
    try:
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))
    except Py4JError:
        return 0


def _asked_for(session: Any) -> int:
    """Of as many executors as the job has asked for; 0 where it has asked for no number."""
    executors = int(session.conf.get("spark.executor.instances", "0"))
    cores = int(session.conf.get("spark.executor.cores", "1"))
    return executors * (cores // int(session.conf.get("spark.task.cpus", "1")))
