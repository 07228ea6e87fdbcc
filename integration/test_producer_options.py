"""The list of Java's producer options that unit tests use is the list of the newest kafka-clients jar."""

from __future__ import annotations

import re
import subprocess

import pytest

from integration.support.kafka_versions import NEWEST, ensure_jars
from tests.producer.kafka_clients_options import INTERNAL_OPTIONS, PRODUCER_OPTION_NAMES

pytestmark = pytest.mark.needs("kafka")

PRODUCER_CONFIG = "org.apache.kafka.clients.producer.ProducerConfig"
"""Its main method prints the documentation of all options that are not internal, as HTML."""


def test_option_names_equal_those_of_newest_kafka_clients() -> None:
    html = subprocess.run(
        ["java", "-cp", f"{ensure_jars(NEWEST)}/*", PRODUCER_CONFIG], check=True, capture_output=True, text=True
    ).stdout
    names = set(re.findall(r' id="producerconfigs_([^"]+)"', html))
    assert names == PRODUCER_OPTION_NAMES - INTERNAL_OPTIONS
