"""Fallbacks for older versions of pyspark, with fakes of Spark's objects."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.pandas import functions
from pyspark.sql.types import IntegerType

from spark_kafka_sink.errors import MissingDependencyError
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.pyspark_versions import build_arrow_udf, register_data_source, repartition_by_id


def create_rejecting_session(condition: str) -> Any:
    """Create a session that rejects each data source with an error of this condition."""

    class Rejection(AnalysisException):
        def getCondition(self) -> str:  # noqa: N802 - Spark's name
            return condition

    def register(data_source: object) -> None:
        raise Rejection("rejected")

    return SimpleNamespace(dataSource=SimpleNamespace(register=register))


@pytest.mark.data_source
def test_ignores_that_spark_has_already_discovered_the_data_source() -> None:
    register_data_source(create_rejecting_session("DATA_SOURCE_ALREADY_EXISTS"), KafkaDataSource)


@pytest.mark.data_source
def test_raises_other_rejection_of_data_source() -> None:
    with pytest.raises(AnalysisException, match="rejected"):
        register_data_source(create_rejecting_session("INTERNAL_ERROR"), KafkaDataSource)


def test_missing_pandas_is_an_error_with_remedies_if_spark_has_no_arrow_udf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(functions, "arrow_udf", raising=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"Install pandas, set distribution to 'key', or use"):
        build_arrow_udf(lambda column: column, IntegerType())


@pytest.mark.parametrize("method", ["repartitionById", "repartition"])
def test_repartitions_with_method_that_spark_has(method: str) -> None:
    frame: Any = SimpleNamespace(**{method: lambda count, column: (method, count, column)})
    result: object = repartition_by_id(frame, 3, "id")
    assert result == (method, 3, "id")
