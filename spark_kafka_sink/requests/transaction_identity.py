"""TransactionIdentity: the transactional id, producer id and epoch of a transaction."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch


@dataclass(frozen=True)
class TransactionIdentity:
    """The ids, epoch and transaction version that a process needs to write to a transaction or to end it."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int

    @property
    def id_and_epoch(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.epoch)
