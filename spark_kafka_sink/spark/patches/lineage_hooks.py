"""Hooks that send OpenLineage events for a write if OpenLineage's Spark listener is configured.

Without its settings, a write makes only one extra call to the JVM, and `openlineage-python` is not imported.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from spark_kafka_sink.spark.constants import MICRO_BATCH_OPTION

if TYPE_CHECKING:
    from spark_kafka_sink.spark.lineage import LineageWrite

_PREFIX = "spark.openlineage."
"""Prefix of the settings of OpenLineage's Spark listener."""
_PACKAGE_MISSING_MESSAGE = (
    "Spark is configured for OpenLineage (spark.openlineage.*), but the Python package '%s' is missing or too old, so "
    "this sink does not report lineage. To enable lineage, install the extra on the driver: pip install "
    '"spark-kafka-sink[openlineage]".'
)

_log = logging.getLogger(__name__)


@contextmanager
def trace_save(
    frame: Any, options: Mapping[str, str], column_positions: list[int], *, uses_map_in_arrow: bool
) -> Iterator[dict[str, str]]:
    """Send events for the batch write in the block. Yield the options that the caller must add to the write.

    `options`: the write's options, with lowercase names.
    `column_positions`: positions of the columns that the sink uses.
    """
    write = _prepare_lineage_if_enabled(
        frame, options, column_positions, is_stream=False, uses_map_in_arrow=uses_map_in_arrow
    )
    if write is None:
        yield {}
        return
    with write.trace_save():
        yield write.options()


def trace_query(
    frame: Any, options: Mapping[str, str], column_positions: list[int], start: Callable[[dict[str, str]], Any]
) -> Any:
    """Start a streaming query and send its events. Return the query.

    `options`: the write's options, with lowercase names.
    `column_positions`: positions of the columns that the sink uses.
    `start`: starts the query and returns it. Its argument is a dict of options that must be added to the write.
    """
    write = _prepare_lineage_if_enabled(frame, options, column_positions, is_stream=True, uses_map_in_arrow=False)
    return start({}) if write is None else write.start_query(lambda: start(write.options()))


def _prepare_lineage_if_enabled(
    frame: Any, options: Mapping[str, str], column_positions: list[int], *, is_stream: bool, uses_map_in_arrow: bool
) -> LineageWrite | None:
    """Prepare to send OpenLineage events about a write. Return None if the write sends no events.

    A micro-batch sends no events, because it belongs to its stream's run. A Spark Connect client sends no events,
    because the write reports they are built from exist only on the driver.
    """
    session = frame.sparkSession
    is_micro_batch = MICRO_BATCH_OPTION in options
    is_spark_connect = type(session).__module__.startswith("pyspark.sql.connect")
    if is_micro_batch or is_spark_connect:
        return None
    settings = read_lineage_settings(session)
    if not settings or _is_disabled(settings):
        return None
    try:
        from spark_kafka_sink.spark.lineage import prepare_lineage
        from spark_kafka_sink.spark.lineage_events import SparkWrite
    except ImportError as error:  # also raised if an older version of the package lacks one of these names
        _warn_about_missing_package(error.name or "openlineage-python")
        return None
    fields = [frame.schema.fields[position] for position in column_positions]
    columns = tuple((field.name, field.dataType.simpleString()) for field in fields)
    app_name = session.sparkContext.appName
    write = SparkWrite(app_name, session.version, columns, is_stream=is_stream, uses_map_in_arrow=uses_map_in_arrow)
    return prepare_lineage(settings, options, write)


def read_lineage_settings(session: Any) -> dict[str, str]:
    """Return the application's OpenLineage settings, without their prefix. A session cannot change them.

    Return an empty dict if the platform rejects the call to the JVM that reads them.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # not installed with some Connect clients

    try:
        pairs = session.sparkContext._jsc.sc().getConf().getAllWithPrefix(_PREFIX)
        return {pair._1(): pair._2() for pair in pairs}
    except Py4JError as error:
        _log.debug("Could not read the settings of OpenLineage: %s", error)
        return {}


def _is_disabled(settings: Mapping[str, str]) -> bool:
    """Return whether a setting or OpenLineage's own environment variable disables all events."""
    return "true" in (settings.get("disabled", "").lower(), os.environ.get("OPENLINEAGE_DISABLED", "").lower())


@cache  # so that each warning is logged only once
def _warn_about_missing_package(name: str) -> None:
    _log.warning(_PACKAGE_MISSING_MESSAGE, name)
