"""Fixtures and warning filters for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyspark
import pytest
from pyspark.sql import SparkSession

from spark_kafka_sink.preflight import run
from spark_kafka_sink.preflight.checks import PreflightTimeouts
from spark_kafka_sink.spark import checks
from tests.spark.fake_preflight import Preflights
from tests.spark_session import shared_spark


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return shared_spark()


@pytest.fixture(autouse=True)
def no_fault_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let driver checks give up early, because missing topics and stopped brokers do not return in these tests."""
    monkeypatch.setattr(run, "PreflightTimeouts", partial(PreflightTimeouts, retry_ms=100.0))


@pytest.fixture
def preflights(monkeypatch: pytest.MonkeyPatch) -> Iterator[Preflights]:
    preflights = Preflights()
    monkeypatch.setattr(checks, "preflight", preflights)
    checks.clear_cache()
    yield preflights
    checks.clear_cache()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings about pyspark itself.

    pyspark 3.5, 4.0 and 4.1 do not close the sockets that transfer rows from the JVM. The garbage collector closes
    them. pyspark 3.5 compares versions with distutils.
    """
    if pyspark.__version__.startswith(("3.5", "4.0", "4.1")):
        for item in items:
            if "tests/spark/" in item.nodeid:
                item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
                item.add_marker(pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"))
