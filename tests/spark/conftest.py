"""Spark, and the embedded broker, for the tests of this folder."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.spark_session import shared_spark


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return shared_spark()
