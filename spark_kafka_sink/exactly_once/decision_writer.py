"""DecisionWriter: writes entries into the decision log, each in a transaction of the driver.

Only the driver with the newest epoch of the driver's id can write: brokers refuse an older driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from spark_kafka_sink.errors import TransactionTimeoutError
from spark_kafka_sink.exactly_once.decision_log import DRIVER_TIMEOUT_MS, PARTITION
from spark_kafka_sink.exactly_once.entries import Entry, encoded
from spark_kafka_sink.exactly_once.names import driver_id
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.sending.partition_states import ProducerIdAndEpoch

_ATTEMPTS_MAX = 3
"""Of a commit without an answer: together three times max.block.ms."""

_OF_ITS_OWN = {
    "linger.ms": "0",
    "compression.type": "gzip",
    "max.request.size": "16777216",
    "buffer.memory": "33554432",
    "transaction.timeout.ms": str(DRIVER_TIMEOUT_MS),
}


class DecisionWriter:
    """A context manager. `driver`: an epoch that no transaction was begun under."""

    def __init__(self, options: Mapping[str, str], topic: str, prefix: str, driver: ProducerIdAndEpoch) -> None:
        self._topic = topic
        self._prefix = prefix
        self._producer = KafkaProducer({**options, **_OF_ITS_OWN, "transactional.id": driver_id(prefix)})
        self._producer.resume_transactions(driver, 0)

    def __enter__(self) -> DecisionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer.close(timeout=5 if kind is None else 0)

    def write(self, entry: Entry) -> None:
        """Durable when this returns. ProducerFencedError if a newer driver has the prefix."""
        self._write(encoded(entry))

    def forget(self) -> None:
        """Nothing needs to be known of the prefix any more."""
        self._write(None)

    def _write(self, value: bytes | None) -> None:
        self._producer.partitions_for(self._topic)
        self._producer.begin_transaction()
        record = ProducerRecord(self._topic, value, key=self._prefix.encode(), partition=PARTITION)
        self._producer.send(record)
        for _ in range(_ATTEMPTS_MAX - 1):
            if self._is_committed():
                return
        self._producer.commit_transaction()

    def _is_committed(self) -> bool:
        """False: that is not known yet, and the same call again brings the answer."""
        try:
            self._producer.commit_transaction()
        except TransactionTimeoutError:
            return False
        return True
