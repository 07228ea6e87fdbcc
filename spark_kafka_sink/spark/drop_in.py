"""register(): what Spark's own Kafka sink does and Spark does not do for a data source in Python.

Spark finds the data source by itself through the module `pyspark_pykafka`, and `mode("append")` then works. The rest:

- `save()` without a mode. Spark refuses its default mode, "fail if it exists", for every data source in Python; for a
  Kafka topic it means append.
- Threads. Spark looks a data source in Python up in the *active* session, which a thread that did not make the session
  does not have, so that writes from a pool of threads fail with DATA_SOURCE_NOT_FOUND.
- Some secrets do not look like secrets to Spark: a private key in `kafka.ssl.keystore.key`, for example. Spark 4.1
  prints a stream's options in `query.explain(extended=True)`, less those that its redaction recognises. And Spark
  Connect writes each request with all its options into the event log and the UI, unless told what to hide.

The first two need another `save` and `start` in the classes of pyspark. They call the original ones, and step in only
for this data source.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.spark.datasource import MODE_NOT_ALLOWED, NAME, KafkaDataSource

_SECRET_NAMES = r"(?:kafka\.(?:sasl|ssl)|schema\.registry\.(?:basic|bearer|ssl))\."
# Options by their names; and in the text of a request to Connect, names and values together.
_REDACTION = {
    "spark.sql.redaction.options.regex": f"(?i){_SECRET_NAMES}",
    "spark.sql.redaction.string.regex": r'(?i)key: "' + _SECRET_NAMES + r'[^"]*"\s+value: "(?:[^"\\]++|\\.)*+"',
}
_MODE_REFUSED = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
_OURS = "_pykafka_drop_in"

_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("pykafka")` in this session a drop-in for Spark's own Kafka sink. May be called again."""
    spark.dataSource.register(KafkaDataSource)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        # A session of Connect has no threads' own state, so its streams need nothing.
        from pyspark.sql.connect.readwriter import DataFrameWriter as ConnectWriter

        _replace(ConnectWriter, "save", _appending)
    else:
        from pyspark.sql.readwriter import DataFrameWriter
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        _replace(DataFrameWriter, "save", lambda original: _in_active_session(_appending(original)))
        _replace(DataStreamWriter, "start", _in_active_session)
        _warn_of_another_python(str(spark.sparkContext.master), str(spark.sparkContext.pythonExec))
    _redact_secrets(spark)


def _replace(writer_class: Any, method: str, wrapped: Any) -> None:
    original = getattr(writer_class, method)
    if not hasattr(original, _OURS):
        ours = wrapped(original)
        setattr(ours, _OURS, True)
        setattr(writer_class, method, ours)


def _appending(original: Any) -> Any:
    """`save` that takes the default mode for append."""

    @functools.wraps(original)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: str | list[str] | None = None,  # noqa: N803
        **options: Any,
    ) -> None:
        try:
            original(self, path, format, mode, partitionBy, **options)
        except PySparkException as refusal:
            refused = _refused_mode(refusal)
            if refused is None:
                raise
            if refused != "ErrorIfExists":
                raise ConfigurationError(MODE_NOT_ALLOWED.format(refused)) from None
            try:
                original(self, path, format, "append", partitionBy, **options)
            finally:
                self.mode("errorifexists")

    return save


def _in_active_session(original: Any) -> Any:
    """`save` or `start` of classic Spark, with the writer's session as the active one of a thread that has none."""

    @functools.wraps(original)
    def write(self: Any, *arguments: Any, **options: Any) -> Any:
        session: Any = self._spark
        sessions = SparkSession._get_j_spark_session_class(session._jvm)
        if sessions.getActiveSession().isDefined():
            return original(self, *arguments, **options)
        sessions.setActiveSession(session._jsparkSession)
        try:
            return original(self, *arguments, **options)
        finally:
            sessions.clearActiveSession()

    return write


def _refused_mode(error: PySparkException) -> str | None:
    """The mode that Spark refused, if that is what happened, and to this data source; else None."""
    if error.getCondition() != _MODE_REFUSED:
        return None
    parameters = error.getMessageParameters() or {}
    if parameters.get("source", "").strip('"').lower() != NAME:
        return None
    return str(parameters.get("createMode", "")).strip('"')


def _warn_of_another_python(master: str, worker_python: str) -> None:
    """The commonest mistake on one machine: an interpreter that is not active, and PYSPARK_PYTHON not set."""
    found = shutil.which(worker_python)
    if not master.startswith("local") or (found and os.path.dirname(found) == os.path.dirname(sys.executable)):
        return
    _log.warning(
        'Spark runs its Python workers with %s, and this program is run by %s. If a write fails with "No module named '
        "'spark_kafka_sink'\", set PYSPARK_PYTHON to the latter before the session is made.",
        found or worker_python,
        sys.executable,
    )


def _redact_secrets(spark: SparkSession) -> None:
    for setting, secrets in _REDACTION.items():
        known = spark.conf.get(setting, None) or ""
        if secrets not in known:
            spark.conf.set(setting, f"{known}|{secrets}" if known else secrets)
