"""`pykafka demo` from beginning to end, with a few rows on an existing Kafka cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import read_topic
from tests.spark_session import JVM

ROWS = 20_000
OF_THE_STREAM = 100_000


def demo(*arguments: str) -> str:
    command = [sys.executable, "-m", "spark_kafka_sink", "demo", "--rows", str(ROWS), *arguments]
    environment = os.environ | {"SPARK_SUBMIT_OPTS": JVM}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("kafka")
def test_demo_verifies_rows_and_names_its_topic(kafka: KafkaCluster) -> None:
    output = demo("--bootstrap-server", kafka.bootstrap())
    assert f"{ROWS + OF_THE_STREAM:,} rows in " in output
    assert ": 0 missing, 0 duplicated" in output
    topics = set(re.findall(r"topic (pykafka-demo-\d+) with 6 partitions", output))
    rows = re.findall(r"^(pykafka-demo-\d+) +\d +0 +[\d,]+ +([\d,]+)$", output, re.MULTILINE)
    assert {topic for topic, _ in rows} == topics
    assert sum(int(count.replace(",", "")) for _, count in rows) == ROWS + OF_THE_STREAM
    (topic,) = topics
    assert f"Topic {topic} still exists" in output
    assert len(read_topic(kafka.bootstrap(), topic)) == ROWS + OF_THE_STREAM
