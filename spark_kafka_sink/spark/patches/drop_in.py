"""register(): makes writes to `pykafka` work like writes to Spark's own Kafka sink.

From Spark 4.0 on, Spark finds the data source through the module `pyspark_pykafka` even without `register`, and writes
with `mode("append")` work. Spark 3.5 has no Python data sources, so the format `pykafka` exists only in the methods
that `register` installs. `register` adds:

- `save()` without a mode, output mode update, and checks before Spark plans the write (see write_methods.py).
  `insertInto` and `writeTo` write to an existing table and do not name the format `pykafka`, so their checks run late,
  when Spark plans the write. Their errors are also raised without Spark's wrapping (see plain_errors.py).
- Writes from any thread. Spark looks up a Python data source in the *active* session, and only the thread that created
  the session has one. Without `register`, writes from a thread pool fail with DATA_SOURCE_NOT_FOUND.
- Redaction. Spark hides only option values that it recognizes as secrets. It does not recognize, for example, a private
  key in `kafka.ssl.keystore.key`. Spark 4.1 prints such values in `query.explain(extended=True)` of a stream. Spark
  Connect writes each request with all its options to the event log and the UI, unless it is configured to redact them.

The first two features are implemented by replacing methods of pyspark's classes. The new methods call the original ones
and change only writes to this data source.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.patches.plain_errors import wrap_with_plain_errors
from spark_kafka_sink.spark.patches.recorded_writer import install_call_recorder
from spark_kafka_sink.spark.patches.write_methods import (
    wrap_save,
    wrap_save_as_table,
    wrap_start,
    wrap_to_table,
)
from spark_kafka_sink.spark.pyspark_versions import HAS_PYTHON_DATA_SOURCES, register_data_source

# The pattern matches anywhere in a name, because ignored and misspelt options may also contain secrets.
_SECRET_NAME_PATTERN = "sasl|ssl|auth|password|secret|token"
REDACTION_CONFS = {
    "spark.sql.redaction.options.regex": f"(?i){_SECRET_NAME_PATTERN}",
    # In the text of a Connect request, an option's value follows its name.
    "spark.sql.redaction.string.regex": r'(?i)key: "[^"]*(?:'
    + _SECRET_NAME_PATTERN
    + r')[^"]*"\s+value: "(?:[^"\\]++|\\.)*+"',
}
"""Spark's redaction settings, each with the pattern that `register` appends to its value."""
_CONNECT_REQUIRES_SPARK_4_MESSAGE = (
    "With Spark Connect, 'pykafka' requires Spark 4.0 or newer, because older versions have no Python data sources. "
    "Run the program on the driver instead, with a classic session."
)
_PATCHED_ATTRIBUTE = "_pykafka_drop_in"
"""Attribute that marks a method that `register` has installed."""
_Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Function that takes a method and returns the method that replaces it."""

_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("pykafka")` a drop-in replacement for Spark's own Kafka sink. Repeated calls are harmless.

    Raise ConfigurationError for a Spark Connect session of a Spark version older than 4.0.

    Example:

        register(spark)
        frame.write.format("pykafka").options(**{"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}).save()
    """
    register_data_source(spark, KafkaDataSource)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        if not HAS_PYTHON_DATA_SOURCES:
            raise ConfigurationError(_CONNECT_REQUIRES_SPARK_4_MESSAGE)
        from pyspark.sql.connect import readwriter
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectStreamWriter

        # Spark Connect does not bind sessions to threads.
        _patch_writers(readwriter.DataFrameWriter, ConnectStreamWriter, readwriter.DataFrameWriterV2)
    else:
        from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        # Spark 3.5 looks up no Python data sources, so the active session does not matter there.
        session_wrappers = [_wrap_with_active_session] if HAS_PYTHON_DATA_SOURCES else []
        _patch_writers(DataFrameWriter, DataStreamWriter, DataFrameWriterV2, session_wrappers)
        _warn_about_python_mismatch(str(spark.sparkContext.master), str(spark.sparkContext.pythonExec))
    _redact_secrets(spark)


def _patch_writers(
    batch_writer: Any, stream_writer: Any, table_writer: Any, session_wrappers: Sequence[_Wrapper] = ()
) -> None:
    """Replace the write methods of the writer classes.

    `batch_writer`, `stream_writer`: the classes of `frame.write` and `frame.writeStream`.
    `table_writer`: the class of `frame.writeTo(...)`.
    `session_wrappers`: wrappers that activate the writer's session in the calling thread, if Spark needs it.
    """
    install_call_recorder(batch_writer)
    install_call_recorder(stream_writer)
    _patch_method(batch_writer, "save", wrap_save, *session_wrappers, wrap_with_plain_errors)
    _patch_method(batch_writer, "saveAsTable", wrap_save_as_table, *session_wrappers, wrap_with_plain_errors)
    _patch_method(stream_writer, "start", wrap_start, *session_wrappers, wrap_with_plain_errors)
    _patch_method(stream_writer, "toTable", wrap_to_table, *session_wrappers, wrap_with_plain_errors)
    # The remaining methods write to a table and do not name its format, so the write cannot be checked here.
    _patch_method(batch_writer, "insertInto", wrap_with_plain_errors)
    for method in ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"):
        _patch_method(table_writer, method, wrap_with_plain_errors)


def _wrap_with_active_session(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap one of classic Spark's write methods so that it runs with an active session.

    Spark looks up Python data sources in the active session of the thread. If the thread has none, because another
    thread created the session, the writer's own session becomes the active one during the call.
    """

    @functools.wraps(original)
    def write(self: Any, *arguments: Any, **options: Any) -> Any:
        session: Any = self._spark
        session_class = SparkSession._get_j_spark_session_class(session._jvm)
        if session_class.getActiveSession().isDefined():
            return original(self, *arguments, **options)
        session_class.setActiveSession(session._jsparkSession)
        try:
            return original(self, *arguments, **options)
        finally:
            session_class.clearActiveSession()

    return write


def _patch_method(writer_class: Any, method: str, *wrappers: _Wrapper) -> None:
    """Replace a method of the class with a wrapped version, unless the method is wrapped already.

    `wrappers`: applied in this order, so that the last one is called first.
    """
    original = getattr(writer_class, method)
    if hasattr(original, _PATCHED_ATTRIBUTE):
        return
    patched = original
    for wrap in wrappers:
        patched = wrap(patched)
    setattr(patched, _PATCHED_ATTRIBUTE, True)
    setattr(writer_class, method, patched)


def _warn_about_python_mismatch(master: str, worker_python: str) -> None:
    """Warn if a local Spark runs its Python workers with a different interpreter than this program.

    On a single machine, users often run the program from a virtual environment that is not active, and do not set
    PYSPARK_PYTHON. The workers then may not find this package.
    """
    if not master.startswith("local"):
        return
    worker_path = shutil.which(worker_python)
    if worker_path and os.path.dirname(worker_path) == os.path.dirname(sys.executable):
        return
    _log.warning(
        'Spark runs its Python workers with %s, but this program runs with %s. If a write fails with "No module named '
        "'spark_kafka_sink'\", set PYSPARK_PYTHON to %s before you create the session.",
        worker_path or worker_python,
        sys.executable,
        sys.executable,
    )


def _redact_secrets(spark: SparkSession) -> None:
    """Add the names of secret options to Spark's redaction settings."""
    for setting, pattern in REDACTION_CONFS.items():
        try:
            # Call `get` without a default, so that it returns Spark's own default, to which the pattern is appended.
            current_pattern = spark.conf.get(setting) or ""
        except IllegalArgumentException:
            continue  # Sail does not have this setting
        if pattern not in current_pattern:
            spark.conf.set(setting, f"{current_pattern}|{pattern}" if current_pattern else pattern)
