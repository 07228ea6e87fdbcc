"""ProducerIdAndEpoch: by what a broker knows a producer."""

from __future__ import annotations

from typing import NamedTuple

EPOCH_MAX = 32_767


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int
    epoch: int


NO_PRODUCER_ID = ProducerIdAndEpoch(-1, -1)
