"""The names of other clients lead to names that exist, and none of them is one of ours."""

from __future__ import annotations

import re

import pytest

from spark_kafka_sink.client.other_names import KAFKA_PYTHON, LIBRDKAFKA, meant
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS

KNOWN = {*PRODUCER_OPTIONS, *SECURITY_OPTIONS}


@pytest.mark.parametrize("name", [*LIBRDKAFKA, *KAFKA_PYTHON])
def test_each_name_leads_to_names_that_can_be_set(name: str) -> None:
    assert name not in KNOWN
    named = re.findall(r"\{([^}]+)\}", (LIBRDKAFKA | KAFKA_PYTHON)[name])
    refused = {name for name, option in PRODUCER_OPTIONS.items() if option.refused}
    refused |= {name for name, option in SECURITY_OPTIONS.items() if option.refused}
    assert all(option in KNOWN and option not in refused for option in named)


def test_names_are_written_as_the_user_writes_them() -> None:
    assert meant("message.timeout.ms", KNOWN) == "That is librdkafka's name; here it is delivery.timeout.ms."
    assert meant("max_block_ms", KNOWN, "kafka.") == "Names have dots here: kafka.max.block.ms."
    assert meant("lingr.ms", KNOWN, "kafka.") == "Is kafka.linger.ms meant?"
    assert meant("zzzzzz", KNOWN) == ""


def test_a_login_is_written_out() -> None:
    words = meant("sasl.username", KNOWN)
    assert 'org.apache.kafka.common.security.plain.PlainLoginModule required username="<user>"' in words
    assert 'org.apache.kafka.common.security.scram.ScramLoginModule required username="<user>"' in words
