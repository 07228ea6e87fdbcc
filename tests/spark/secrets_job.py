"""Run by test_secrets.py in a process of its own: writes with secrets among the options, shown as Spark shows it all.

`python -m tests.spark.secrets_job FOLDER`: logs at level INFO go to stdout and stderr, the event log and a checkpoint
go to FOLDER. No broker is there: one write and one stream fail, another stream has no rows and goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark_session import start_spark

SECRET = "hush-hush"
SECRETS = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{SECRET}-1";'
    ),
    "kafka.ssl.key.password": f"{SECRET}-2",
    "kafka.ssl.truststore.password": f"{SECRET}-3",
    # Its name does not look like that of a secret, and its value neither.
    "kafka.ssl.keystore.key": f"{SECRET}-4",
}
UNREACHABLE = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.max.block.ms": "500",
    "checkConnection": "false",
    "topic": "t",
}

LOG_SETTINGS = """
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
"""


def main(folder: Path) -> None:
    spark = _spark(folder)
    options = UNREACHABLE | SECRETS
    rows = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    _show("batch job", lambda: rows.write.format("pykafka").options(**options).save())
    _show("misspelt option", lambda: rows.write.format("pykafka").options(**options).option("tpoic", "t").save())

    ticks = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    _show("stream with a misspelt option", lambda: _run(ticks, folder / "misspelt", options | {"tpoic": "t"}))
    _show("stream that fails", lambda: _run(ticks, folder / "failing", options))
    _show("stream without rows", lambda: _run(ticks.where("value = 'none'"), folder / "empty", options))
    spark.stop()


def _spark(folder: Path) -> SparkSession:
    (folder / "log4j2.properties").write_text(LOG_SETTINGS)
    (folder / "events").mkdir()
    return start_spark(
        {
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{folder}/log4j2.properties",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
    )


def _show(title: str, action: Callable[[], None]) -> None:
    print(f"=== {title}", flush=True)
    try:
        action()
        print("=== ended well", flush=True)
    except PySparkException as error:
        print(f"=== failed: {error}", flush=True)


def _run(frame: DataFrame, folder: Path, options: dict[str, str]) -> None:
    writer = frame.writeStream.format("pykafka").options(**options).option("checkpointLocation", str(folder))
    query = writer.trigger(processingTime="1 second").start()
    while query.isActive and not any(progress["numInputRows"] for progress in query.recentProgress):
        time.sleep(0.2)
    query.explain(extended=True)
    print(query.lastProgress, flush=True)
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise failure


if __name__ == "__main__":
    main(Path(sys.argv[1]))
