"""The versions of Produce for topics with or without ids, and for transaction versions 1 and 2."""

from __future__ import annotations

from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.schema import VersionRange

_LAST_TOPIC_NAMES_VERSION = 12
"""The last version that contains topic names; later versions contain topic ids only."""
_FIRST_TRANSACTION_V2_VERSION = 12
"""The first version in which a batch adds its partition to its transaction (KIP-890)."""


def allowed_produce_versions(transaction_version: int | None, *, by_name_only: bool) -> VersionRange:
    """Return the usable versions.

    `transaction_version`: None outside of transactions. `by_name_only`: whether the id of any topic is unknown.
    """
    minimum, maximum = ProduceRequest.VERSIONS.min, ProduceRequest.VERSIONS.max
    if by_name_only:
        maximum = _LAST_TOPIC_NAMES_VERSION
    if transaction_version is not None and transaction_version >= 2:
        minimum = _FIRST_TRANSACTION_V2_VERSION
    elif transaction_version is not None:
        maximum = min(maximum, _FIRST_TRANSACTION_V2_VERSION - 1)
    return VersionRange(minimum, maximum)
