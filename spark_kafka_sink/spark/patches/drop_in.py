"""register(): what Spark's own Kafka sink does and Spark does not do for a data source in Python.

Spark finds the data source by itself through the module `pyspark_pykafka`, and `mode("append")` then works. The rest:

- `save()` without a mode, output mode update, and mistakes that are found before Spark plans: see save_and_start.py.
  What writes to a table that exists, `insertInto` and `writeTo`, does not say that its format is `pykafka`, so it is
  Spark that asks for the checks, late; the errors become plain all the same.
- Threads. Spark looks a data source in Python up in the *active* session, which a thread that did not make the session
  does not have, so that writes from a pool of threads fail with DATA_SOURCE_NOT_FOUND.
- Some secrets do not look like secrets to Spark: a private key in `kafka.ssl.keystore.key`, for example. Spark 4.1
  prints a stream's options in `query.explain(extended=True)`, less those that its redaction recognises. And Spark
  Connect writes each request with all its options into the event log and the UI, unless configured what to hide.

The first two need other methods in the classes of pyspark. They call the original ones, and step in only for this data
source.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.patches.plain_errors import wrap_with_plain_errors
from spark_kafka_sink.spark.patches.recorded_writer import record
from spark_kafka_sink.spark.patches.write_methods import (
    wrap_save,
    wrap_save_as_table,
    wrap_start,
    wrap_to_table,
    wrap_with_active_session,
)
from spark_kafka_sink.spark.pyspark_versions import register_data_source

# Parts of names: options that are passed over or misspelt have secrets, too. In the text of a request to Connect names
# and values stand together.
_SECRET_NAMES = "sasl|ssl|auth|password|secret|token"
REDACTION_CONFS = {
    "spark.sql.redaction.options.regex": f"(?i){_SECRET_NAMES}",
    "spark.sql.redaction.string.regex": r'(?i)key: "[^"]*(?:'
    + _SECRET_NAMES
    + r')[^"]*"\s+value: "(?:[^"\\]++|\\.)*+"',
}
_OURS = "_pykafka_drop_in"
_Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]

_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Make `format("pykafka")` in this session a drop-in for Spark's own Kafka sink. May be called again.

    Example:

        register(spark)
        frame.write.format("pykafka").options(**{"kafka.bootstrap.servers": "localhost:9092", "topic": "orders"}).save()
    """
    register_data_source(spark, KafkaDataSource)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        from pyspark.sql.connect import readwriter
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectStreamWriter

        _replace_all(readwriter.DataFrameWriter, ConnectStreamWriter, readwriter.DataFrameWriterV2, _as_it_is)
    else:
        from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2
        from pyspark.sql.streaming.readwriter import DataStreamWriter

        _replace_all(DataFrameWriter, DataStreamWriter, DataFrameWriterV2, wrap_with_active_session)
        _warn_about_python_mismatch(str(spark.sparkContext.master), str(spark.sparkContext.pythonExec))
    _redact_secrets(spark)


def _replace_all(batch: Any, stream: Any, table: Any, active: _Wrapper) -> None:
    """`active`: what a session of classic Spark needs; one of Connect has no threads' own state."""
    record(batch)
    record(stream)
    _replace(batch, "save", lambda original: active(wrap_save(original)))
    _replace(batch, "saveAsTable", lambda original: active(wrap_save_as_table(original)))
    _replace(stream, "start", lambda original: active(wrap_start(original)))
    _replace(stream, "toTable", lambda original: active(wrap_to_table(original)))
    _replace(batch, "insertInto", _as_it_is)
    for method in ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"):
        _replace(table, method, _as_it_is)


def _as_it_is(original: Callable[..., Any]) -> Callable[..., Any]:
    return original


def _replace(writer_class: Any, method: str, wrapped: _Wrapper) -> None:
    original = getattr(writer_class, method)
    if not hasattr(original, _OURS):
        ours = wrap_with_plain_errors(wrapped(original))
        setattr(ours, _OURS, True)
        setattr(writer_class, method, ours)


def _warn_about_python_mismatch(master: str, worker_python: str) -> None:
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
    for setting, secrets in REDACTION_CONFS.items():
        # Without a default of ours `get` gives the one of Spark where nothing is set: it stays in force.
        known = spark.conf.get(setting) or ""
        if secrets not in known:
            spark.conf.set(setting, f"{known}|{secrets}" if known else secrets)
