"""Which versions of Produce will do: topics with or without ids, transactions of version 1 or 2."""

from __future__ import annotations

from spark_kafka_sink.protocol.messages.produce import ProduceRequest
from spark_kafka_sink.protocol.schema import VersionRange

_NAMES_ONLY_TO = 12
"""The last version in which topics have names. Later versions have their ids alone."""
_ADDS_PARTITIONS_FROM = 12
"""In a transaction, what is written adds its partition from this version on (KIP-890), and must not before."""


def produce_versions(transaction_version: int | None, *, by_name_only: bool) -> VersionRange:
    """`transaction_version`: None outside of transactions. `by_name_only`: of some topic the id is not known."""
    least, most = ProduceRequest.VERSIONS.min, ProduceRequest.VERSIONS.max
    if by_name_only:
        most = _NAMES_ONLY_TO
    if transaction_version is not None and transaction_version >= 2:
        least = _ADDS_PARTITIONS_FROM
    elif transaction_version is not None:
        most = min(most, _ADDS_PARTITIONS_FROM - 1)
    return VersionRange(least, most)
