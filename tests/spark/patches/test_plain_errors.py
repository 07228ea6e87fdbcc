"""Errors in notebooks: the output shows the user's own lines and one error with its remedy."""

from __future__ import annotations

import re

import pytest
from IPython.core.interactiveshell import InteractiveShell
from pyspark.sql import SparkSession
from traitlets.config import Config

from spark_kafka_sink.errors import DeliveryError, KafkaSinkError, SchemaError
from spark_kafka_sink.spark.patches.plain_errors import parse_task_error
from spark_kafka_sink.testing import embedded_broker

pytestmark = pytest.mark.needs("java")

SPARKS_WORDS = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task
Traceback (most recent call last):
  File "x.py", line 1, in write
spark_kafka_sink.errors.{}: The task for Spark partition 0 failed to write 1 record to Kafka.
- topic 't', partition 0.
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
"""
WRITE = '.write.format("pykafka").option("kafka.bootstrap.servers", address).option("topic", "{}").save()'

# The mistake, the code of the cell, the beginning of the output, and other texts in its first paragraph.
MISTAKES: list[tuple[str, str, str, list[str]]] = [
    (
        "a wrong column",
        'spark.range(3).selectExpr("CAST(id AS STRING) AS vlaue", "id AS number")' + WRITE.format("t"),
        "SchemaError: Required attribute 'value' not found",
        ["The columns are vlaue, number.", "Did you mean 'vlaue'?", '.withColumnRenamed("vlaue", "value")'],
    ),
    (
        "a topic that does not exist",
        'spark.range(3).selectExpr("CAST(id AS STRING) AS value")' + WRITE.format("nope"),
        "PreflightError: Cannot write to Kafka; nothing was written. Topic 'nope' does not exist.",
        ["What to do: ", "create the topic"],
    ),
    (
        "a broker that is not there",
        "address = '127.0.0.1:1'\nspark.range(3).selectExpr(\"CAST(id AS STRING) AS value\")" + WRITE.format("t"),
        "PreflightError: Cannot write to Kafka; nothing was written. ",
        ["127.0.0.1:1: Connection refused", "Check the host and port"],
    ),
    (
        "a row that is too large",
        "spark.range(3).selectExpr(\"repeat('x', 3000) AS value\")" + WRITE.format("t"),
        "DeliveryError: The task for Spark partition ",
        ["MESSAGE_TOO_LARGE", "What to do: ", '"deadLetter"'],
    ),
]


@pytest.fixture
def shell(spark: SparkSession) -> InteractiveShell:
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))  # type: ignore[no-untyped-call]
    shell.user_ns["spark"] = spark
    return shell


@pytest.mark.parametrize(("cell", "first", "others"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_notebook_shows_only_message_and_line_of_user(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str, first: str, others: list[str]
) -> None:
    with embedded_broker(topics={"t": 1}, max_message_bytes=2000) as broker:
        shell.user_ns["address"] = broker.bootstrap_servers
        shell.run_cell(cell)  # type: ignore[no-untyped-call]
    sentence, _, code = capsys.readouterr().out.partition("\n\n")
    assert sentence.startswith(first)
    assert [words for words in others if words not in sentence] == []
    assert code.count('  File "') == 1
    assert code.rstrip().endswith(cell.splitlines()[-1])


def test_raises_errors_of_other_code_unchanged(spark: SparkSession) -> None:
    with embedded_broker(topics={"t": 1}) as broker:
        writer = spark.range(1).selectExpr("CAST(raise_error('mine') AS STRING) AS value").write.format("pykafka")
        writer = writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", "t")
        with pytest.raises(Exception, match="mine") as raised:
            writer.save()
    assert not isinstance(raised.value, KafkaSinkError)


def test_keeps_sparks_error_as_context_of_plain_error(spark: SparkSession) -> None:
    with embedded_broker(topics={"t": 1}, max_message_bytes=2000) as broker:
        writer = spark.range(1).selectExpr("repeat('x', 3000) AS value").write.format("pykafka")
        with pytest.raises(DeliveryError) as raised:
            writer.option("kafka.bootstrap.servers", broker.bootstrap_servers).option("topic", "t").save()
    assert re.search("Python worker", str(raised.value.__context__))
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "kind"),
    [("SchemaError", SchemaError), ("BrokerError", DeliveryError), ("Sequence", DeliveryError)],
)
def test_rebuilds_class_of_errors_that_have_only_a_message(name: str, kind: type[KafkaSinkError]) -> None:
    error = parse_task_error(SPARKS_WORDS.format(name))
    assert type(error) is kind
    assert str(error) == "The task for Spark partition 0 failed to write 1 record to Kafka.\n- topic 't', partition 0."


def test_parses_no_task_error_from_other_text() -> None:
    assert parse_task_error("java.lang.OutOfMemoryError\n\tat x") is None
