"""The APIs that we speak, by Kafka's numbers, and the notation for their versions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


VERSION_LIMIT = 32767  # versions travel as int16


@dataclass(frozen=True)
class VersionRange:
    """Versions min to max, both included."""

    min: int
    max: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.min <= version <= self.max

    def __str__(self) -> str:
        if self.max == VERSION_LIMIT:
            return f"{self.min}+"
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Reads Kafka's notation: "3", "3-12" or "3+"."""
        low, dash, high = text.partition("-")
        if dash:
            return cls(int(low), int(high))
        return cls(int(low[:-1]), VERSION_LIMIT) if low.endswith("+") else cls(int(low), int(low))
