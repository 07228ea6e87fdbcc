"""Spark, and the embedded broker, for the tests of this folder."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark_session import shared_spark


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return shared_spark()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pyspark 4.1 leaves the sockets to the garbage collector, through which rows come from the JVM."""
    if pyspark.__version__.startswith("4.1"):
        for item in items:
            if "tests/spark/" in item.nodeid:
                item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
