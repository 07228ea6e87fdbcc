"""ProducerIdAndEpoch: the identity by which brokers recognize a producer."""

from __future__ import annotations

from typing import NamedTuple

MAX_EPOCH = 32_767


class ProducerIdAndEpoch(NamedTuple):
    """A producer id, and the epoch that fences earlier producers with this id."""

    producer_id: int
    epoch: int


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)

UNUSED_IDENTITY = ProducerIdAndEpoch(producer_id=2**62, epoch=0)
"""A valid identity that brokers never assign to a producer."""
