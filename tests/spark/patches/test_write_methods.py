"""Invalid writes are rejected on the driver before Spark plans them. No upstream stage runs, and the error is ours."""

from __future__ import annotations

import inspect
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.readwriter import DataFrameWriter

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigurationError, KafkaSinkError, PreflightError, SchemaError
from spark_kafka_sink.spark.patches.drop_in import REDACTION_CONFS
from spark_kafka_sink.spark.pool import IDLE_TIMEOUT_CONF
from spark_kafka_sink.testing import EmbeddedBroker, assert_topic_equals, embedded_broker

pytestmark = pytest.mark.needs("java")

NOWHERE = {"kafka.bootstrap.servers": "localhost:1", "topic": "t", "checkConnection": "false"}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(3).selectExpr("CAST(id AS STRING) AS value")


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={"t": 2, "orders": 1}) as broker:
        yield broker


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Yield a port that refuses connections, because a socket is bound to it but does not listen."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Upstream:
    """A DataFrame behind a shuffle, whose stages Spark runs before it requests the writer of a Python sink."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        ran = context.accumulator(0)

        def counted(batches: Iterator[Any]) -> Iterator[Any]:
            ran.add(1)
            yield from batches

        assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
        numbers = spark.range(0, 8, 1, 4).mapInArrow(counted, "id LONG")
        sums = numbers.groupBy(expr("id % 3 AS n")).agg(expr("sum(id) AS sum"))
        self.frame = sums.selectExpr("CAST(n AS STRING) AS key", "CAST(sum AS STRING) AS value")
        self._ran = ran

    @property
    def tasks_run(self) -> int:
        return int(self._ran.value)


def get_write_error(write: Callable[[], object], spark: SparkSession) -> KafkaSinkError:
    """Return the error of a write that is rejected before Spark runs any job for it."""
    group = f"refused-{uuid.uuid4()}"
    spark.sparkContext.setJobGroup(group, "a write that must not start")
    with pytest.raises(KafkaSinkError) as error:
        write()
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(group)) == []
    assert "Traceback" not in str(error.value)
    return error.value


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda frame: frame,
            {"deadLeterTopic": "t"},
            "Unknown option 'deadLeterTopic'. Did you mean 'deadLetterTopic'?",
        ),
        (lambda frame: frame.drop("value"), {}, "Required attribute 'value' not found"),
        (lambda frame: frame, {"kafka.bootstrap.servers": "127.0.0.1:{unused}"}, "{unused}: Connection refused"),
        (lambda frame: frame, {"topic": "not-there"}, "Topic 'not-there' does not exist."),
        (
            lambda frame: frame,
            {"topic": "ordres"},
            "Topic 'ordres' does not exist.\nWhat to do: Did you mean 'orders'? Correct the name",
        ),
    ],
    ids=["a misspelt option", "no value", "a wrong address", "a wrong topic", "a topic misspelt"],
)
def test_rejects_mistake_after_shuffle_before_any_task(
    spark: SparkSession,
    broker: EmbeddedBroker,
    unused_port: int,
    change: Callable[[DataFrame], DataFrame],
    options: dict[str, str],
    message: str,
) -> None:
    upstream = Upstream(spark)
    sink_options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "t"} | options
    sink_options = {name: value.format(unused=unused_port) for name, value in sink_options.items()}
    error = get_write_error(change(upstream.frame).write.format("pykafka").options(**sink_options).save, spark)
    assert message.format(unused=unused_port) in str(error)
    assert upstream.tasks_run == 0


def test_writes_rows_after_shuffle_when_checks_pass(spark: SparkSession, broker: EmbeddedBroker) -> None:
    upstream = Upstream(spark)
    broker.control.create_topic("sums", 1)
    upstream.frame.write.save(
        format="pykafka", **{"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "sums"}
    )
    assert upstream.tasks_run == 4
    sums = spark.createDataFrame([("12",), ("7",), ("9",)], "value STRING")
    assert_topic_equals(sums, broker.topic("sums"))


def test_reports_all_faults_of_options_and_schema_together(spark: SparkSession) -> None:
    writer = spark.range(1).write.format("pykafka").option("kafka.acks", "7").option("kafka.lingr.ms", "1")
    error = get_write_error(writer.save, spark)
    assert isinstance(error, ConfigurationError)
    for part in (
        "bootstrap.servers is not set",
        "acks must be one of",
        "linger.ms",
        "topic option required when no 'topic' attribute is present",
        "Required attribute 'value' not found",
    ):
        assert part in str(error)


def test_checks_schema_before_connecting(spark: SparkSession, unused_port: int) -> None:
    frame = spark.range(1).selectExpr("id AS value")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", f"127.0.0.1:{unused_port}")
    error = get_write_error(writer.option("topic", "t").save, spark)
    assert isinstance(error, SchemaError)
    assert "value attribute unsupported type bigint" in str(error)


@pytest.mark.parametrize(("mode", "word"), [("overwrite", "Overwrite"), ("ignore", "Ignore")])
@pytest.mark.parametrize("how", ["mode()", "save()"])
def test_rejects_other_save_modes_in_sparks_wording(
    rows: DataFrame, spark: SparkSession, mode: str, word: str, how: str
) -> None:
    writer = rows.write.format("pykafka").options(**NOWHERE)
    error = get_write_error(writer.mode(mode).save if how == "mode()" else lambda: writer.save(mode=mode), spark)
    expected = f"Save mode {word} not allowed for Kafka. Allowed save modes are Append and ErrorIfExists (default)."
    assert str(error) == expected


def test_keeps_default_save_mode_of_other_formats(rows: DataFrame, tmp_path: Path) -> None:
    path = str(tmp_path / "there")
    rows.write.format("json").save(path)
    with pytest.raises(AnalysisException, match="PATH_ALREADY_EXISTS"):
        rows.write.format("json").save(path)


def test_rejects_path(rows: DataFrame, spark: SparkSession) -> None:
    writer = rows.write.format("pykafka").options(**NOWHERE)
    assert "Option 'path', from save(path)" in str(get_write_error(lambda: writer.save("t"), spark))
    writer.option("topix", "t")
    assert "Option 'path'" not in str(get_write_error(writer.save, spark))


def test_rejects_path_of_stream(rows: DataFrame, spark: SparkSession) -> None:
    writer = spark.readStream.format("rate").load().selectExpr("'v' AS value").writeStream.format("pykafka")
    writer.options(**NOWHERE, checkpointLocation="/tmp/unused")
    assert "Option 'path', from save(path)" in str(get_write_error(lambda: writer.start("t"), spark))
    writer.option("topix", "t")
    assert "Option 'path'" not in str(get_write_error(writer.start, spark))


@pytest.mark.parametrize("method", [name for name in ("partitionBy", "clusterBy") if hasattr(DataFrameWriter, name)])
def test_ignores_table_layout_with_warning_as_in_sparks_sink(
    rows: DataFrame, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with embedded_broker({"t": 1}) as broker:
        writer = rows.write.format("pykafka").options(**broker.topic("t").spark_options)
        getattr(writer, method)("key").save()
        assert broker.topic("t").read().num_rows == rows.count()
    assert f"Ignored {method}('key'), which has no effect on Kafka" in caplog.text
    assert "its column 'partition'" in caplog.text


def test_register_may_be_called_repeatedly(spark: SparkSession) -> None:
    save, option = DataFrameWriter.save, DataFrameWriter.option
    register(spark)
    register(spark)
    assert (DataFrameWriter.save, DataFrameWriter.option) == (save, option)
    assert str(spark.conf.get("spark.sql.redaction.options.regex")).count("sasl") == 1


@pytest.mark.parametrize("own", [None, "mine"])
def test_register_keeps_existing_redaction(spark: SparkSession, own: str | None) -> None:
    """By default, Spark redacts options with `url` in their names, because database URLs may contain passwords."""
    session = spark.newSession()
    before = {name: session.conf.get(name) if own is None else own for name in REDACTION_CONFS}
    assert before["spark.sql.redaction.options.regex"] == (own or "(?i)url")
    for name in REDACTION_CONFS if own else ():
        session.conf.set(name, own or "")
    register(session)
    for name, added in REDACTION_CONFS.items():
        assert session.conf.get(name) == (f"{before[name]}|{added}" if before[name] else added)


def test_failed_write_can_be_fixed_and_saved_with_same_writer(
    rows: DataFrame, spark: SparkSession, broker: EmbeddedBroker
) -> None:
    broker.control.create_topic("mended", 1)
    writer = rows.write.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    get_write_error(writer.option("kafka.acks", "7").option("topic", "mended").save, spark)
    writer.option("kafka.acks", "all").save()
    writer.save()
    assert_topic_equals(rows.union(rows), broker.topic("mended"))


def test_rejects_invalid_producer_cache_timeout(rows: DataFrame, spark: SparkSession) -> None:
    spark.conf.set(IDLE_TIMEOUT_CONF, "10 minutes")
    try:
        error = get_write_error(rows.write.format("pykafka").options(**NOWHERE).save, spark)
    finally:
        spark.conf.unset(IDLE_TIMEOUT_CONF)
    assert str(error) == f"{IDLE_TIMEOUT_CONF} must be a duration such as 30s, 10m or 1h, not '10 minutes'."


def test_error_names_host_and_port_of_wrong_address(rows: DataFrame, spark: SparkSession, unused_port: int) -> None:
    for address in (f"127.0.0.1:{unused_port}", "no-such-host.invalid:9092"):
        writer = rows.write.format("pykafka").option("topic", "t").option("kafka.bootstrap.servers", address)
        error = get_write_error(writer.save, spark)
        assert isinstance(error, PreflightError)
        assert address in str(error)
        assert '.option("checkConnection", "false")' in str(error)


def test_error_names_unreachable_advertised_address(rows: DataFrame, spark: SparkSession) -> None:
    with embedded_broker(topics={"t": 1}, advertised_host="kafka.invalid") as broker:
        servers = broker.bootstrap_servers.replace("kafka.invalid", "127.0.0.1")
        writer = rows.write.format("pykafka").option("topic", "t").option("kafka.bootstrap.servers", servers)
        error = str(get_write_error(writer.save, spark))
    assert "Broker 0 (kafka.invalid:" in error
    assert "the name cannot be resolved" in error
    assert "The broker advertises this address (advertised.listeners)" in error


@pytest.mark.data_source
def test_reading_error_names_format_kafka(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="writes to Kafka and cannot read"):
        spark.read.format("pykafka").option("subscribe", "t").load()


@pytest.mark.data_source
def test_runs_same_checks_without_register(rows: DataFrame, broker: EmbeddedBroker, unused_port: int) -> None:
    """Use another session, which shares the JVM but has not registered the sink, and Spark's original `save`."""
    save = inspect.unwrap(DataFrameWriter.save)
    frame = rows.sparkSession.newSession().range(1).selectExpr("CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").mode("append").option("topic", "t")
    with pytest.raises(AnalysisException, match=r"bootstrap\.servers is not set"):
        save(writer)
    with pytest.raises(AnalysisException, match="Connection refused"):
        save(writer.option("kafka.bootstrap.servers", f"127.0.0.1:{unused_port}"))
    broker.control.create_topic("found", 1)
    save(writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", "found"))
    assert_topic_equals(frame, broker.topic("found"))


def test_threads_that_did_not_create_the_session_can_write(
    rows: DataFrame, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Spark looks up Python data sources in the active session, and such a thread has none."""
    broker.control.create_topic("threads", 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": "threads"}
    rows.write.parquet(str(tmp_path / "source"))
    files = rows.sparkSession.readStream.schema(rows.schema).parquet(str(tmp_path / "source"))

    def write() -> None:
        rows.write.format("pykafka").options(**options).save()
        stream = files.writeStream.format("pykafka").options(**options).trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(write).result()
    assert_topic_equals(rows.union(rows), broker.topic("threads"))
