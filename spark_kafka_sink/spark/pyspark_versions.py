"""APIs of the newest pyspark, with fallbacks for pyspark 3.5 and 4.0.

pyspark 4.0 lacks `DataSourceStreamArrowWriter`, `arrow_udf` and `repartitionById`, and refuses to register a data
source that it has already discovered by itself. Its worker passes Arrow batches to every `DataSourceArrowWriter`,
including stream writers.

pyspark 3.5 has no Python data sources. There, our classes inherit from placeholders, and every write runs through
mapInArrow (map_in_arrow.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException

from spark_kafka_sink.errors import MissingDependencyError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )
    from pyspark.sql.types import DataType

    HAS_PYTHON_DATA_SOURCES: bool
else:
    try:
        # Databricks' Spark 3.5 has a preview of this module, without DataSourceArrowWriter.
        from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
    except ImportError:
        HAS_PYTHON_DATA_SOURCES = False

        class DataSource:
            """The part of Spark's class that `KafkaDataSource` uses."""

            def __init__(self, options):
                self.options = options

        class DataSourceArrowWriter:
            """A placeholder."""

        class DataSourceStreamArrowWriter:
            """A placeholder."""

        class WriterCommitMessage:
            """A placeholder."""

    else:
        HAS_PYTHON_DATA_SOURCES = True
        try:
            from pyspark.sql.datasource import DataSourceStreamArrowWriter
        except ImportError:
            from pyspark.sql.datasource import DataSourceStreamWriter

            class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
                """A stream writer that the worker of pyspark 4.0 treats as an Arrow writer."""


__all__ = [
    "HAS_PYTHON_DATA_SOURCES",
    "DataSource",
    "DataSourceArrowWriter",
    "DataSourceStreamArrowWriter",
    "WriterCommitMessage",
    "build_arrow_udf",
    "register_data_source",
    "repartition_by_id",
]
_ALREADY_EXISTS_CONDITION = "DATA_SOURCE_ALREADY_EXISTS"


def register_data_source(spark: SparkSession, data_source: type[DataSource]) -> None:
    """Register a data source. It is not an error if pyspark 4.0 has already discovered it.

    With pyspark 3.5, which has no Python data sources, do nothing.
    """
    if not HAS_PYTHON_DATA_SOURCES:
        return
    try:
        spark.dataSource.register(data_source)
    except AnalysisException as error:
        if error.getCondition() != _ALREADY_EXISTS_CONDITION:
            raise


def build_arrow_udf(function: Callable[[pa.Array], pa.Array], return_type: DataType) -> Callable[[Any], Any]:
    """Wrap a function of one binary Arrow column as an Arrow UDF, or as a pandas UDF with pyspark 4.0 and older."""
    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError:
        pd = _import_pandas()
        from pyspark.sql.pandas.functions import pandas_udf

        def apply_to_series(series: Any) -> Any:
            column = pa.array(series.to_numpy(), pa.binary(), from_pandas=True)
            # By default, integers with nulls would become floats.
            return function(column).to_pandas(integer_object_nulls=True)

        # Spark infers the kind of pandas UDF from the type hints.
        apply_to_series.__annotations__ = {"series": pd.Series, "return": pd.Series}
        udf: Callable[[Any], Any] = cast(Any, pandas_udf)(apply_to_series, return_type)
    else:
        udf = cast(Any, arrow_udf)(function, return_type)
    return udf


def _import_pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "With pyspark 4.0 and older, distribution = 'partition' requires pandas on the driver and on the workers. "
            "Install pandas, set distribution to 'key', or use pyspark 4.1 or newer."
        ) from error
    return pandas


def repartition_by_id(frame: DataFrame, partition_count: int, id_column: str) -> DataFrame:
    """Move all rows with the same value in the id column to the same task.

    pyspark 4.0 and older hash the ids, so one task may get several ids while another task gets none.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(partition_count, id_column)
    return frame.repartition(partition_count, id_column)
