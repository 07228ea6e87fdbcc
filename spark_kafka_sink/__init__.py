"""Spark sink and producer for Apache Kafka in Python, without a JAR and without a Python loop over rows.

The public names are imported on first use, so that the producer works without pyspark, and so that a Spark worker
imports only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from spark_kafka_sink.errors import KafkaSinkError, MissingDependencyError
    from spark_kafka_sink.producer.producer import KafkaProducer
    from spark_kafka_sink.producer.record import ProducerRecord
    from spark_kafka_sink.producer.results import ColumnsResult, RecordMetadata
    from spark_kafka_sink.producer.tables import TableResult
    from spark_kafka_sink.records.columns import RecordColumns
    from spark_kafka_sink.spark.datasource import KafkaDataSource
    from spark_kafka_sink.spark.patches.drop_in import register

__version__ = "0.1.0"

_MODULES_BY_NAME = {
    "ColumnsResult": "spark_kafka_sink.producer.results",
    "KafkaDataSource": "spark_kafka_sink.spark.datasource",
    "KafkaProducer": "spark_kafka_sink.producer.producer",
    "KafkaSinkError": "spark_kafka_sink.errors",
    "ProducerRecord": "spark_kafka_sink.producer.record",
    "RecordColumns": "spark_kafka_sink.records.columns",
    "RecordMetadata": "spark_kafka_sink.producer.results",
    "TableResult": "spark_kafka_sink.producer.tables",
    "register": "spark_kafka_sink.spark.patches.drop_in",
}

__all__ = [
    "ColumnsResult",
    "KafkaDataSource",
    "KafkaProducer",
    "KafkaSinkError",
    "ProducerRecord",
    "RecordColumns",
    "RecordMetadata",
    "TableResult",
    "register",
]


def __getattr__(name: str) -> object:
    module = _MODULES_BY_NAME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_kafka_sink.errors import MissingDependencyError

    try:
        return getattr(import_module(module), name)
    except MissingDependencyError as error:
        return _build_placeholder(name, error)


def _build_placeholder(name: str, error: MissingDependencyError) -> Callable[..., NoReturn]:
    """Return a function that raises the error when it is called.

    Reading the name must not raise, because `help`, `hasattr` and `import *` read every public name.
    """

    def raise_missing(*args: object, **options: object) -> NoReturn:
        raise error

    raise_missing.__name__ = raise_missing.__qualname__ = name
    raise_missing.__doc__ = str(error)
    return raise_missing


def __dir__() -> list[str]:
    return sorted(__all__)
