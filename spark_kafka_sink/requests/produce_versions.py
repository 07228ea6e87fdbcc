"""The versions of Produce that a request may use. They depend on topic ids and on the transaction version."""

from __future__ import annotations

from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.schema import VersionRange

_LAST_TOPIC_NAMES_VERSION = 12
"""The last version that identifies topics by name; later versions use topic ids only."""
_MIN_VERSION_WITH_TRANSACTIONS_V2 = 12
"""The first version in which a batch adds its partition to its transaction (KIP-890).

Transactions of version 1 use older versions, because separate requests add their partitions.
"""


def allowed_produce_versions(transaction_version: int | None, *, needs_topic_names: bool) -> VersionRange:
    """Return the versions of Produce that may be used.

    `transaction_version`: None outside of transactions.
    `needs_topic_names`: whether the request must identify its topics by name, because at least one topic id is unknown.
    """
    minimum, maximum = ProduceRequest.VERSIONS.min, ProduceRequest.VERSIONS.max
    if needs_topic_names:
        maximum = _LAST_TOPIC_NAMES_VERSION
    if transaction_version is not None and transaction_version >= 2:
        minimum = _MIN_VERSION_WITH_TRANSACTIONS_V2
    elif transaction_version is not None:
        maximum = min(maximum, _MIN_VERSION_WITH_TRANSACTIONS_V2 - 1)
    return VersionRange(minimum, maximum)
