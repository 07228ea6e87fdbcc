"""The number of tasks that share maxBytesPerSecond: those that can run concurrently."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.concurrent_tasks import find_max_concurrent_tasks
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.patches import write_methods
from spark_kafka_sink.spark.patches.recorded_writer import get_recorded_calls
from spark_kafka_sink.spark.patches.write_methods import wrap_save

LIMIT = 1_000_000
JOB = """
from spark_kafka_sink.spark.concurrent_tasks import find_max_concurrent_tasks
from tests.spark_session import start_spark
session = start_spark({"spark.default.parallelism": "200", "spark.task.cpus": "2"}, "local[6]")
print("tasks at once:", find_max_concurrent_tasks(session), "of", session.sparkContext.defaultParallelism)
"""


def session(slots: int | None, master: str = "yarn", **settings: str) -> Any:
    """Build a session whose executors have this number of slots. None: the JVM does not provide the number."""

    def read_max_concurrent_tasks(profile: object) -> int:
        if slots is None:
            raise Py4JError("is not whitelisted")
        return slots

    context = SimpleNamespace(
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=object),
        maxNumConcurrentTasks=read_max_concurrent_tasks,
    )
    conf = {name.replace("__", "."): value for name, value in settings.items()}
    return SimpleNamespace(
        conf=SimpleNamespace(get=conf.get),
        sparkContext=SimpleNamespace(master=master, _jsc=SimpleNamespace(sc=lambda: context)),
    )


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (session(7), 7),
        (session(7, spark__default__parallelism="200"), 7),
        (session(2, spark__executor__instances="10", spark__executor__cores="4", spark__task__cpus="3"), 10),
        (session(64, spark__executor__instances="10", spark__executor__cores="4"), 64),
        (session(4, "local[4]", spark__executor__instances="10"), 4),
        (session(None, spark__executor__instances="3"), 3),
        (session(None), None),
        (session(0), None),
        (session(8, spark__dynamicAllocation__enabled="true"), None),
    ],
)
def test_counts_registered_and_requested_executors(given: Any, number: int | None) -> None:
    assert find_max_concurrent_tasks(given) == number


@pytest.mark.needs("java")
def test_max_concurrent_tasks_follows_sparks_core_settings() -> None:
    job = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, check=False)
    assert "tasks at once: 3 of 200" in job.stdout, job.stdout + job.stderr


def share(spark: SparkSession, **options: str) -> float | None:
    """Return a task's share of LIMIT, from the options that Spark passes to the write."""
    register(spark)
    handed_over: list[dict[str, str]] = []

    def original(writer: Any, *_: Any) -> None:
        record = get_recorded_calls(writer)
        assert record is not None
        handed_over.append(record.options())

    frame = spark.range(4).selectExpr("CAST(id AS STRING) AS key", "'v' AS value")
    given = {
        "kafka.bootstrap.servers": "a:1",
        "topic": "t",
        "checkConnection": "false",
        "maxBytesPerSecond": str(LIMIT),
    }
    # With pyspark 3.5 the write does not reach the original method.
    with patch.object(write_methods, "write_with_map_in_arrow", lambda _, options: handed_over.append(options)):
        wrap_save(original)(frame.write.format("pykafka").options(**given, **options))
    (one,) = handed_over
    return parse_options(one).bytes_per_second


@pytest.mark.needs("java")
def test_concurrent_tasks_share_the_byte_rate_limit(spark: SparkSession) -> None:
    """The session of the tests has two cores."""
    assert share(spark) == LIMIT / 2
    assert share(spark, maxTasks="200") == LIMIT / 2, "no more of them run at once"
    assert share(spark, maxTasks="1") == LIMIT
    assert share(spark, distribution="key", distributionTasks="1") == LIMIT
    assert share(spark, distribution="key", distributionTasks="50", maxTasks="50") == LIMIT / 2


@pytest.mark.needs("java")
def test_requires_max_tasks_when_concurrent_tasks_are_unknown(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kafka_sink.spark.patches.task_limits.find_max_concurrent_tasks", lambda _: None)
    with pytest.raises(ConfigurationError, match="'maxBytesPerSecond' requires 'maxTasks' or 'distributionTasks'"):
        share(spark)
    assert share(spark, distribution="key", distributionTasks="8") == LIMIT / 8
    assert share(spark, maxTasks="8") == LIMIT / 8
    assert share(spark, maxTasks=" +8 ") == LIMIT / 8, "the table of options takes it, too"
