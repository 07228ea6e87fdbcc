"""register(): provides what Spark's own Kafka sink supports and Spark does not support for a Python data source.

Spark 3.5 has no Python data sources, and only the methods that `register` installs know the format `pykafka`. From
Spark 4.0 on, Spark finds the data source without `register` through the module `pyspark_pykafka`, and `mode("append")`
then works. `register` adds:

- `save()` without a mode, output mode update, and checks before Spark plans the write: see write_methods.py.
  `insertInto` and `writeTo`, which write to an existing table, do not name the format `pykafka`. Spark therefore runs
  the checks, late. Their errors are still raised as plain errors.
- Threads. Spark looks up a Python data source in the *active* session. A thread that did not create the session has no
  active session, so writes from a thread pool fail with DATA_SOURCE_NOT_FOUND.
- Redaction. Some secrets do not look like secrets to Spark, for example a private key in `kafka.ssl.keystore.key`.
  Spark 4.1 prints the options of a stream in `query.explain(extended=True)`, except those that its redaction
  recognizes. Spark Connect writes each request with all its options to the event log and the UI, unless it is
  configured to redact them.

The first two replace methods in the classes of pyspark. The new methods call the original ones, and change only writes
to this data source.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.patches.plain_errors import wrap_with_plain_errors
from spark_kafka_sink.spark.patches.recorded_writer import record_calls
from spark_kafka_sink.spark.patches.write_methods import (
    wrap_save,
    wrap_save_as_table,
    wrap_start,
    wrap_to_table,
    wrap_with_active_session,
)
from spark_kafka_sink.spark.pyspark_versions import HAS_PYTHON_DATA_SOURCES, register_data_source

# The pattern matches parts of names, because ignored and misspelt options may contain secrets, too.
_SECRET_NAME_PATTERN = "sasl|ssl|auth|password|secret|token"
REDACTION_CONFS = {
    "spark.sql.redaction.options.regex": f"(?i){_SECRET_NAME_PATTERN}",
    # In the text of a Connect request, the value of an option follows its name.
    "spark.sql.redaction.string.regex": r'(?i)key: "[^"]*(?:'
    + _SECRET_NAME_PATTERN
    + r')[^"]*"\s+value: "(?:[^"\\]++|\\.)*+"',
}
_CONNECT_REQUIRES_SPARK_4_MESSAGE = (
    "With Spark Connect, 'pykafka' requires Spark 4.0 or newer, because older versions have no Python data sources. "
    "Run the program on the driver instead, with a classic session."
)
_PATCHED_ATTRIBUTE = "_pykafka_drop_in"
_Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]

_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("pykafka")` in this session a drop-in for Spark's own Kafka sink. May be called again.

    Example:

        register(spark)
        frame.write.format("pykafka").options(**{"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}).save()
    """
    register_data_source(spark, KafkaDataSource)
    # The active session matters only where Spark looks up data sources.
    wrap_with_session = wrap_with_active_session if HAS_PYTHON_DATA_SOURCES else _keep_method
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        if not HAS_PYTHON_DATA_SOURCES:
            raise ConfigurationError(_CONNECT_REQUIRES_SPARK_4_MESSAGE)
        from pyspark.sql.connect import readwriter
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectStreamWriter

        _patch_writers(readwriter.DataFrameWriter, ConnectStreamWriter, readwriter.DataFrameWriterV2, _keep_method)
    else:
        from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        _patch_writers(DataFrameWriter, DataStreamWriter, DataFrameWriterV2, wrap_with_session)
        _warn_about_python_mismatch(str(spark.sparkContext.master), str(spark.sparkContext.pythonExec))
    _redact_secrets(spark)


def _patch_writers(batch_writer: Any, stream_writer: Any, table_writer: Any, wrap_with_session: _Wrapper) -> None:
    """Replace the write methods of the writer classes.

    `wrap_with_session` makes the session active in classic Spark. Sessions of Spark Connect are not bound to threads.
    """
    record_calls(batch_writer)
    record_calls(stream_writer)
    _patch_method(batch_writer, "save", lambda original: wrap_with_session(wrap_save(original)))
    _patch_method(batch_writer, "saveAsTable", lambda original: wrap_with_session(wrap_save_as_table(original)))
    _patch_method(stream_writer, "start", lambda original: wrap_with_session(wrap_start(original)))
    _patch_method(stream_writer, "toTable", lambda original: wrap_with_session(wrap_to_table(original)))
    _patch_method(batch_writer, "insertInto", _keep_method)
    for method in ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"):
        _patch_method(table_writer, method, _keep_method)


def _keep_method(original: Callable[..., Any]) -> Callable[..., Any]:
    return original


def _patch_method(writer_class: Any, method: str, wrap: _Wrapper) -> None:
    """Replace a method with its wrapped version, which raises plain errors, unless it is replaced already."""
    original = getattr(writer_class, method)
    if not hasattr(original, _PATCHED_ATTRIBUTE):
        patched = wrap_with_plain_errors(wrap(original))
        setattr(patched, _PATCHED_ATTRIBUTE, True)
        setattr(writer_class, method, patched)


def _warn_about_python_mismatch(master: str, worker_python: str) -> None:
    """Warn if a local Spark runs its Python workers with another interpreter than this program's.

    This is the most common mistake on a single machine: the virtual environment is not active, and PYSPARK_PYTHON is
    not set.
    """
    worker_path = shutil.which(worker_python)
    if not master.startswith("local") or (
        worker_path and os.path.dirname(worker_path) == os.path.dirname(sys.executable)
    ):
        return
    _log.warning(
        'Spark runs its Python workers with %s, but this program runs with %s. If a write fails with "No module named '
        "'spark_kafka_sink'\", set PYSPARK_PYTHON to the latter before you create the session.",
        worker_path or worker_python,
        sys.executable,
    )


def _redact_secrets(spark: SparkSession) -> None:
    """Add the names of secret options to Spark's redaction settings."""
    for setting, pattern in REDACTION_CONFS.items():
        try:
            # `get` is called without a default, so that it returns Spark's own default, which stays in force.
            current_pattern = spark.conf.get(setting) or ""
        except IllegalArgumentException:
            continue  # Sail does not have the setting
        if pattern not in current_pattern:
            spark.conf.set(setting, f"{current_pattern}|{pattern}" if current_pattern else pattern)
