"""Choose the versions of Produce that suit the topics (with or without topic ids) and the transaction version."""

from __future__ import annotations

from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.schema import VersionRange

_LAST_TOPIC_NAMES_VERSION = 12
"""The last version that identifies topics by name; later versions use topic ids only."""
_FIRST_TRANSACTION_V2_VERSION = 12
"""The first version in which a batch adds its partition to its transaction (KIP-890)."""


def allowed_produce_versions(transaction_version: int | None, *, by_name_only: bool) -> VersionRange:
    """Return the versions of Produce that may be used.

    `transaction_version`: None outside of transactions. `by_name_only`: whether any topic's id is unknown, so that the
    request must name its topics.
    """
    minimum, maximum = ProduceRequest.VERSIONS.min, ProduceRequest.VERSIONS.max
    if by_name_only:
        maximum = _LAST_TOPIC_NAMES_VERSION
    if transaction_version is not None and transaction_version >= 2:
        minimum = _FIRST_TRANSACTION_V2_VERSION
    elif transaction_version is not None:
        maximum = min(maximum, _FIRST_TRANSACTION_V2_VERSION - 1)
    return VersionRange(minimum, maximum)
