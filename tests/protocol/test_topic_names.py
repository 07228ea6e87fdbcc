"""Validation of topic names, also by the embedded broker."""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol.topic_names import MAX_TOPIC_NAME_LENGTH, is_topic_name

INVALID_NAMES = ["", ".", "..", "../../x", "a/b", "a b", "tägliche", "a\n", "a\0", "x" * (MAX_TOPIC_NAME_LENGTH + 1)]


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "...", "x" * MAX_TOPIC_NAME_LENGTH])
def test_accepts_letters_digits_dots_underscores_and_hyphens(name: str) -> None:
    assert is_topic_name(name)


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_rejects_any_other_topic_name(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(ConfigurationError, match="not a valid topic name"):
        EmbeddedCluster(ClusterConfig(), topics={name: 1})
