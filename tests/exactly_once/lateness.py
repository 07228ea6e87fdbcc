"""Delays of the explorer: markers written after the response to EndTxn, and requests that arrive after their retry."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity, Transaction, TransactionState
from spark_kafka_sink.exactly_once.timeout_marks import is_marked_fenced
from spark_kafka_sink.protocol.message import ApiKey
from tests.exactly_once.interleaving import Actor, api_of
from tests.fake_system import FakeSocket
from tests.simulated_cluster import SimulatedCluster


class Lateness:
    def __init__(self, cluster: SimulatedCluster, markers_ms: float) -> None:
        """`markers_ms`: how long after the end of a transaction was answered its markers are written; 0: before."""
        self.markers_ms = markers_ms
        self.by = ""
        """Who has sent the request that arrives now."""
        self.additions = 0
        """Requests to add partitions that have arrived late."""
        self.shared_epochs = 0
        """How often brokers took a request for the next epoch of the driver for a repetition, and were wrong."""
        self._cluster = cluster
        self._requests: list[tuple[int, str, FakeSocket, bytes]] = []
        """(the point at which it arrives, its sender, where, what)"""
        self._due_ms: dict[str, float] = {}
        """When the markers of these transactions are written."""
        cluster.core.coordinator.should_defer_completion = self._completes_later

    def state(self) -> int:
        requests = tuple((at, by, data) for at, by, _, data in self._requests)
        return hash((requests, tuple(sorted(self._due_ms.items()))))

    # --- requests

    def sends_late(self, actor: Actor, at: int) -> None:
        """Let the actor's next request arrive at this point, and close its connection now."""

        def late(sock: FakeSocket, data: bytes) -> None:
            self._requests.append((at, actor.name, sock, data))

        actor.sends_late = late

    def arrive(self, at: float = math.inf) -> None:
        """Deliver the requests that are due at this point."""
        due = [each for each in self._requests if each[0] <= at]
        self._requests = [each for each in self._requests if each[0] > at]
        for _, self.by, sock, data in due:
            self.additions += api_of(data) is ApiKey.ADD_PARTITIONS_TO_TXN
            self._cluster.execute_late(sock, data)
        self.by = ""

    def watch_epochs(self, is_driver: Callable[[str], bool], who: Callable[[], object]) -> None:
        """Count what two have got of the epochs of the driver's ids. `who`: whose request is answered."""
        coordinator = self._cluster.core.coordinator
        init_producer_id, had = coordinator.init_producer_id, who()

        def watched(
            transactional_id: str | None, timeout_ms: int, expected: ProducerIdentity | None
        ) -> ProducerIdentity:
            nonlocal had
            before = coordinator.transactions.get(transactional_id or "")
            had_epoch = -1 if before is None else before.epoch
            found = init_producer_id(transactional_id, timeout_ms, expected)
            if transactional_id is not None and is_driver(transactional_id) and not found.error:
                self.shared_epochs += found.epoch == had_epoch and who() is not had
                had = who()
            return found

        coordinator.init_producer_id = watched  # type: ignore[method-assign]

    # --- markers

    @property
    def has_markers_to_write(self) -> bool:
        return bool(self._due_ms)

    def write_markers(self) -> None:
        """Write all pending markers."""
        for name in list(self._due_ms):
            self._complete(name)

    def _completes_later(self, transaction: Transaction) -> bool:
        if not self.markers_ms:
            return False
        name, system = transaction.transactional_id, self._cluster.system
        due_ms = self._due_ms[name] = system.now() + self.markers_ms
        system.at(due_ms, lambda: self._complete(name, due_ms))
        return True

    def _complete(self, name: str, due_ms: float | None = None) -> None:
        if due_ms in (None, self._due_ms.get(name)) and self._due_ms.pop(name, None) is not None:
            self._cluster.complete_transaction(self._cluster.core.coordinator.transactions[name])


def not_ended(known: Iterable[Transaction]) -> set[tuple[str, int, int]]:
    """The identities of what is open. In version 1 also of what was ended and fenced: what was added between the two is
    closed after that, under the next epoch.
    """
    return {
        (each.transactional_id, each.producer_id, each.epoch if each.partitions else each.epoch - 1)
        for each in known
        if each.partitions
        or (each.version == 1 and each.state is TransactionState.EMPTY and is_marked_fenced(each.timeout_ms))
    }
