"""Delays that the explorer injects: transaction markers written after the response, and requests that arrive late."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_kafka_sink.broker.transaction_coordinator import ProducerIdentity, TransactionMetadata, TransactionState
from spark_kafka_sink.exactly_once.timeout_marks import is_marked_fenced
from spark_kafka_sink.protocol.message import ApiKey
from tests.exactly_once.attempts import Identity
from tests.exactly_once.scheduler import Actor, parse_api_key
from tests.fake_system import FakeSocket
from tests.simulated_cluster import SimulatedCluster


@dataclass
class _DelayedRequest:
    arrives_at: int
    """Index of the scheduling point at which the request arrives."""
    sender: str
    sock: FakeSocket
    data: bytes


class Delays:
    def __init__(self, cluster: SimulatedCluster, marker_delay_ms: float) -> None:
        """`marker_delay_ms`: time between the response to EndTxn and the markers; 0: markers precede the response."""
        self.marker_delay_ms = marker_delay_ms
        self.current_sender = ""
        """The actor whose delayed request is being handled, or an empty string."""
        self.late_additions = 0
        """Number of AddPartitionsToTxn requests that have arrived late."""
        self.shared_epochs = 0
        """Number of times a broker mistook a request for a retry and granted the same driver epoch again.

        The request came from another actor, or it was a late request of the same actor.
        """
        self._cluster = cluster
        self._requests: list[_DelayedRequest] = []
        self._markers_due_ms: dict[str, float] = {}
        """Time at which the markers of an ended transaction are due, by transactional id."""
        cluster.core.coordinator.should_defer_completion = self._defer_completion

    def state_hash(self) -> int:
        requests = tuple((request.arrives_at, request.sender, request.data) for request in self._requests)
        return hash((requests, tuple(sorted(self._markers_due_ms.items()))))

    # --- requests

    def has_delayed_request(self, sender: str) -> bool:
        return any(request.sender == sender for request in self._requests)

    def delay_next_request(self, actor: Actor, arrives_at: int) -> None:
        """Deliver the actor's next request at this point of the schedule. The actor's connection closes before."""

        def intercept(sock: FakeSocket, data: bytes) -> None:
            self._requests.append(_DelayedRequest(arrives_at, actor.name, sock, data))

        actor.intercept_next_request = intercept

    def deliver_requests(self, point: float = math.inf) -> None:
        """Deliver the delayed requests that are due at this point, by default all of them."""
        due = [request for request in self._requests if request.arrives_at <= point]
        self._requests = [request for request in self._requests if request.arrives_at > point]
        for request in due:
            self.current_sender = request.sender
            self.late_additions += parse_api_key(request.data) is ApiKey.ADD_PARTITIONS_TO_TXN
            self._cluster.execute_late(request.sock, request.data)
        self.current_sender = ""

    def count_shared_epochs(self, is_driver_id: Callable[[str], bool], current_actor: Callable[[], object]) -> None:
        """Count in `shared_epochs` the epochs of driver ids that brokers grant again."""
        coordinator = self._cluster.core.coordinator
        init_producer_id, last_actor = coordinator.init_producer_id, current_actor()

        def counting(
            transactional_id: str | None, timeout_ms: int, expected_identity: ProducerIdentity | None
        ) -> ProducerIdentity:
            nonlocal last_actor
            transaction = coordinator.transactions.get(transactional_id or "")
            previous_epoch = -1 if transaction is None else transaction.epoch
            granted = init_producer_id(transactional_id, timeout_ms, expected_identity)
            if transactional_id is not None and is_driver_id(transactional_id) and not granted.error_code:
                is_late_or_foreign = bool(self.current_sender) or current_actor() is not last_actor
                self.shared_epochs += granted.epoch == previous_epoch and is_late_or_foreign
                last_actor = current_actor()
            return granted

        coordinator.init_producer_id = counting  # type: ignore[method-assign]

    @property
    def begins_late_transactions(self) -> bool:
        """Whether a transaction of a task may have begun after its batch was over (`no_transaction_stays_open`)."""
        is_version_1 = self._cluster.core.coordinator.version == 1
        return bool(self.late_additions or (is_version_1 and self.shared_epochs))

    # --- transaction markers

    @property
    def has_pending_markers(self) -> bool:
        return bool(self._markers_due_ms)

    def write_markers(self) -> None:
        """Write all pending markers."""
        for transactional_id in list(self._markers_due_ms):
            self._complete(transactional_id)

    def _defer_completion(self, transaction: TransactionMetadata) -> bool:
        if not self.marker_delay_ms:
            return False
        transactional_id, system = transaction.transactional_id, self._cluster.system
        due_ms = self._markers_due_ms[transactional_id] = system.now() + self.marker_delay_ms
        system.at(due_ms, lambda: self._complete(transactional_id, due_ms))
        return True

    def _complete(self, transactional_id: str, due_ms: float | None = None) -> None:
        """Write the markers of an ended transaction, unless `due_ms` is the time of an earlier transaction."""
        if due_ms not in (None, self._markers_due_ms.get(transactional_id)):
            return
        if self._markers_due_ms.pop(transactional_id, None) is not None:
            self._cluster.complete_transaction(self._cluster.core.coordinator.transactions[transactional_id])


def find_open_identities(transactions: Iterable[TransactionMetadata]) -> set[Identity]:
    """Return the identities of open transactions.

    In version 1 a driver first ends a transaction and then fences its id. Partitions that a late request adds between
    these two steps are closed later, under the next epoch. Therefore the previous epoch of a fenced id counts as open.
    """
    return {
        (
            transaction.transactional_id,
            transaction.producer_id,
            transaction.epoch if transaction.partitions else transaction.epoch - 1,
        )
        for transaction in transactions
        if transaction.partitions
        or (
            transaction.version == 1
            and transaction.state is TransactionState.EMPTY
            and is_marked_fenced(transaction.timeout_ms)
        )
    }
