"""The versions in which a Produce request may be sent."""

from __future__ import annotations

import pytest

from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.produce_versions import allowed_produce_versions

OLDEST, NEWEST = ProduceRequest.VERSIONS.min, ProduceRequest.VERSIONS.max


@pytest.mark.parametrize(
    ("transaction_version", "needs_topic_names", "expected"),
    [
        (None, False, (OLDEST, NEWEST)),
        (None, True, (OLDEST, 12)),
        (0, False, (OLDEST, 11)),
        (1, True, (OLDEST, 11)),
        (2, False, (12, NEWEST)),
        (2, True, (12, 12)),
    ],
)
def test_produce_versions_follow_transaction_version_and_topic_ids(
    transaction_version: int | None, needs_topic_names: bool, expected: tuple[int, int]
) -> None:
    assert allowed_produce_versions(transaction_version, needs_topic_names=needs_topic_names) == VersionRange(*expected)
