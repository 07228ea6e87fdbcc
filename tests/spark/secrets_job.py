"""A program that writes with secrets in the options, and saves everything that Spark shows. test_secrets.py starts it.

`python -m tests.spark.secrets_job FOLDER` saves Spark's log at level DEBUG, the event log, the checkpoints and the UI's
pages to FOLDER. There is no broker, so batch writes and streams with rows fail. Two other streams succeed because they
have no rows. The process that has started Spark makes all writes. Then a Spark Connect client repeats them, as
`secrets_job FOLDER ADDRESS`. Spark 3.5 is tested without Spark Connect.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.spark.pyspark_versions import HAS_PYTHON_DATA_SOURCES
from tests.spark_session import CONNECT_SERVER, JVM, connect_address, connect_session, start_spark

SECRET = "hush-hush"
SECRETS = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{SECRET}-1";'
    ),
    "kafka.ssl.key.password": f"{SECRET}-2",
    "kafka.ssl.truststore.password": f"{SECRET}-3",
    # Neither the name nor the value of this option looks like a secret.
    "kafka.ssl.keystore.key": f"{SECRET}-4",
    # This write uses no registry, but jobs often share one dictionary of options between reads and writes.
    "basic.auth.user.info": f"alice:{SECRET}-5",
    "apicurio.auth.client.secret": f"{SECRET}-6",
}
MISTAKEN = {"tpoic": "t", "sasl.jaas.config": f"{SECRET}-7", "kafka.sasl_plain_password": f"{SECRET}-8"}
UNREACHABLE = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.max.block.ms": "500",
    "checkConnection": "false",
    "topic": "t",
}

ATTEMPTS = 3

# The log goes to a file, because a Spark that Python has started prints only warnings to the console.
LOG_SETTINGS = """
rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


def main(folder: Path) -> None:
    spark = _spark(folder)
    write(spark, folder / "classic")
    if HAS_PYTHON_DATA_SOURCES:
        client = [sys.executable, "-m", "tests.spark.secrets_job", str(folder), connect_address(spark)]
        subprocess.run(client, check=True)
    _keep_pages(str(spark.sparkContext.uiWebUrl), folder)
    spark.stop()


def write(spark: SparkSession, folder: Path) -> None:
    print(f"=== {type(spark).__module__}", flush=True)
    options = UNREACHABLE | SECRETS
    rows = spark.range(0, 5, 1, 1).selectExpr("CAST(id AS STRING) AS value")
    show_failure, show_success = partial(_show, is_expected_to_fail=True), partial(_show, is_expected_to_fail=False)
    show_failure("batch job", lambda: rows.write.format("pykafka").options(**options).save())
    show_failure("misspelt option", lambda: rows.write.format("pykafka").options(**options, **MISTAKEN).save())

    numbers = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=5, numPartitions=1).load()
    ticks = numbers.selectExpr("CAST(value AS STRING) AS value")
    show_failure("stream with a misspelt option", lambda: _run(ticks, folder / "misspelt", options | MISTAKEN))
    show_failure("stream that fails", lambda: _run(ticks, folder / "failing", options))
    show_success("stream without rows", lambda: _run(ticks.where("value = 'none'"), folder / "empty", options))
    (folder / "words").mkdir(parents=True)
    (folder / "words" / "0.txt").write_text("some\n")
    words = spark.readStream.text(str(folder / "words"))
    changes = words.where("value = 'none'").groupBy("value").count().selectExpr("value")
    show_success("stream of changes", lambda: _run_to_the_end(changes, folder / "changes", options))


def _spark(folder: Path) -> SparkSession:
    (folder / "log4j2.properties").write_text(LOG_SETTINGS.format(folder=folder))
    (folder / "events").mkdir()
    return start_spark(
        (CONNECT_SERVER if HAS_PYTHON_DATA_SOURCES else {})
        | {
            "spark.driver.extraJavaOptions": f"{JVM} -Dlog4j2.configurationFile=file:{folder}/log4j2.properties",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
        },
    )


def _keep_pages(address: str, folder: Path) -> None:
    """Save the UI's pages and API responses about jobs, SQL queries and settings."""
    application = json.loads(_page(f"{address}/api/v1/applications"))[0]["id"]
    pages = ["jobs/", "stages/", "environment/", "SQL/", "SQL/execution/?id=0", "StreamingQuery/"]
    pages += [f"api/v1/applications/{application}/{name}" for name in ("jobs", "environment", "sql?details=true")]
    (folder / "ui").mkdir()
    for number, page in enumerate(pages):
        (folder / "ui" / str(number)).write_bytes(_page(f"{address}/{page}"))


def _page(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as response:
        content: bytes = response.read()
        return content


def _show(title: str, action: Callable[[], None], *, is_expected_to_fail: bool) -> None:
    """Run the action and print its result. Retry if the result is unexpected.

    Spark's own sockets sometimes time out on a busy machine.
    """
    for _ in range(ATTEMPTS):
        try:
            action()
            has_failed = False
            print(f"=== ended well: {title}", flush=True)
        except (PySparkException, KafkaSinkError) as error:
            has_failed = True
            print(f"=== failed: {title}: {type(error).__name__} {error}", flush=True)
        if has_failed == is_expected_to_fail:
            return


def _run_to_the_end(frame: DataFrame, folder: Path, options: dict[str, str]) -> None:
    """Run the stream to its end.

    Spark Connect logs the plan of a write that is still running when its session ends, so the stream is not stopped.
    """
    writer = frame.writeStream.format("pykafka").options(**options).outputMode("update")
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(extended=True)
    print(query.lastProgress, flush=True)


def _run(frame: DataFrame, folder: Path, options: dict[str, str]) -> None:
    writer = frame.writeStream.format("pykafka").options(**options)
    writer = writer.option("checkpointLocation", str(folder))
    query = writer.trigger(processingTime="1 second").start()
    while query.isActive and not (folder / "commits" / "0").exists():
        time.sleep(0.2)
    query.explain(extended=True)
    print(query.lastProgress, flush=True)
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure


if __name__ == "__main__":
    if len(sys.argv) > 2:
        write(connect_session(sys.argv[2]), Path(sys.argv[1]) / "connect")
    else:
        main(Path(sys.argv[1]))
