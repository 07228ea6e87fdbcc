"""Prefix: the transactions under one prefix, and what the decision log says of it. Its driver uses this, and so do
people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_kafka_sink.client.options import ClientConfig
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.exactly_once.decision_log import DRIVER_TIMEOUT_MS, DecisionLog
from spark_kafka_sink.exactly_once.entries import Entry
from spark_kafka_sink.exactly_once.names import driver_id, task_of
from spark_kafka_sink.exactly_once.transactions_client import EMPTY, ONGOING, TransactionDescription, TransactionsClient
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.sending.partition_states import ProducerIdAndEpoch


class Prefix:
    """A context manager. Used by one thread. `options`: of a producer."""

    def __init__(self, options: Mapping[str, str], name: str, topic: str, *, system: System | None = None) -> None:
        config: ClientConfig = ProducerConfig.parse(options).client_config()
        self.name = name
        self.client = TransactionsClient(config, system=system)
        self.log = DecisionLog(config, topic, self.client.blocking)
        self._options = options

    def __enter__(self) -> Prefix:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @property
    def driver_id(self) -> str:
        return driver_id(self.name)

    def fence(self) -> ProducerIdAndEpoch:
        """Fence all other holders of the driver's id. From now on only the caller can decide under this prefix."""
        return self.client.init_producer_id(self.driver_id, DRIVER_TIMEOUT_MS)

    def entry(self) -> Entry:
        """The newest entry of the prefix. After `fence` no other can follow it."""
        return self.of(self.log.read())

    def of(self, entries: Mapping[str, Entry]) -> Entry:
        return entries.get(self.name, Entry(self.name))

    def leftovers(self) -> list[TransactionDescription]:
        """What tasks have open, and the ids under which they have begun nothing yet, but still can."""
        ids = self.client.ids(lambda name: task_of(self.name, name) is not None, ONGOING, EMPTY)
        return [each for each in self.client.describe(ids).values() if each.state in (ONGOING, EMPTY)]

    def commit(self, entry: Entry) -> dict[str, BrokerError]:
        """Commit all transactions of a decided batch. Returns what was refused."""
        return self.client.end([each.prepared(self.name) for each in entry.transactions], commit=True)

    def abort(self, leftovers: Sequence[TransactionDescription]) -> None:
        """Abort what is open, and let nothing begin under the epochs of the others."""
        self.client.abort({each.transactional_id: each.id_and_epoch for each in leftovers})

    def write(self, driver: ProducerIdAndEpoch, entry: Entry) -> None:
        """Write the entry, which uses up the epoch. ProducerFencedError if another process has fenced this one."""
        from spark_kafka_sink.exactly_once.decision_writer import DecisionWriter  # a whole producer, and rarely

        with DecisionWriter(self._options, self.log.topic, self.name, driver) as writer:
            writer.write(entry)
