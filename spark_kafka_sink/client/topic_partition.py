"""TopicPartition: a topic and a partition number."""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}" if self.partition >= 0 else self.topic  # not assigned yet
