"""Without pyspark the producer works, and the data source says in one sentence what is missing."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
import spark_kafka_sink
assert spark_kafka_sink.KafkaProducer
try:
    spark_kafka_sink.register
except spark_kafka_sink.KafkaSinkError as error:
    print(error)
"""


def test_the_data_source_without_pyspark_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, check=True)
    (sentence,) = done.stdout.splitlines()
    assert 'pip install "spark-kafka-sink[spark]"' in sentence
