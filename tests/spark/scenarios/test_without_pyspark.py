"""Without pyspark, the producer works, and the data source names the missing package in one sentence."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_PYSPARK = 'import sys; sys.modules["pyspark"] = None\n'


def run(script: str) -> str:
    command = [sys.executable, "-c", WITHOUT_PYSPARK + script]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


CALLS = """
from spark_kafka_sink import KafkaDataSource, KafkaProducer, KafkaSinkError, register
for call in (register, KafkaDataSource):
    try:
        call(None)
    except KafkaSinkError as error:
        print(error)
"""


def test_data_source_without_pyspark_names_package_to_install() -> None:
    sentences = run(CALLS).splitlines()
    assert len(sentences) == 2
    assert all('pip install "spark-kafka-sink[spark]"' in sentence for sentence in sentences)


EVERY_NAME = """
import pydoc
import spark_kafka_sink
from spark_kafka_sink import *
assert KafkaProducer
assert all(hasattr(spark_kafka_sink, name) for name in spark_kafka_sink.__all__)
assert not hasattr(spark_kafka_sink, "regsiter")
print(pydoc.render_doc(spark_kafka_sink))
"""


def test_help_hasattr_and_import_of_all_names_work_without_pyspark() -> None:
    assert "Spark sink and producer for Apache Kafka" in run(EVERY_NAME)
