"""TransactionIdentity: whose a transaction is, in the words that brokers know it by."""

from __future__ import annotations

from dataclasses import dataclass

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch


@dataclass(frozen=True)
class TransactionIdentity:
    """All that is needed to write into a transaction, or to end it, also from another process."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int

    @property
    def id_and_epoch(self) -> ProducerIdAndEpoch:
        return ProducerIdAndEpoch(self.producer_id, self.epoch)
