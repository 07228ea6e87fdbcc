"""Kafka's rules for topic names."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_TOPIC_NAME_LENGTH = 249
TOPIC_NAME_RULE = (
    f"1 to {MAX_TOPIC_NAME_LENGTH} of the characters a-z, A-Z, 0-9, '.', '_' and '-', and not '.' or '..' alone"
)
"""The rule for topic names, phrased to complete a sentence in error messages."""

_TOPIC_NAME_PATTERN = re.compile(rf"[a-zA-Z0-9._-]{{1,{MAX_TOPIC_NAME_LENGTH}}}")


# A producer checks the topic of every record, but writes to few topics.
@lru_cache(1024)
def is_topic_name(name: str) -> bool:
    """Return whether Kafka allows this topic name."""
    return name not in (".", "..") and _TOPIC_NAME_PATTERN.fullmatch(name) is not None


def normalize_topic_name(name: str) -> str:
    """Replace periods by underscores. Kafka rejects a new topic if an existing one has the same normalized name.

    The names of metrics are normalized in this way, so the metrics of both topics would have the same name.
    """
    return name.replace(".", "_")
