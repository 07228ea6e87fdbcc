"""ProducerIdAndEpoch: the identity by which brokers recognize a producer."""

from __future__ import annotations

from typing import NamedTuple

MAX_EPOCH = 32_767
"""The highest epoch of a producer id (int16)."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer id, and the epoch that fences earlier producers with this id."""

    producer_id: int
    epoch: int

    def with_next_epoch(self) -> ProducerIdAndEpoch:
        """Return the identity after brokers have bumped the epoch once."""
        return self._replace(epoch=self.epoch + 1)


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)
"""The identity in requests of a producer that has none yet."""

UNUSED_IDENTITY = ProducerIdAndEpoch(producer_id=2**62, epoch=0)
"""A valid identity that brokers never assign to a producer."""
