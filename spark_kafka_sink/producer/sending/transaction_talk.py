"""TransactionTalk: sends what a producer asks about transactions, and hands on the answers. Sender thread only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol, cast

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.request import ClientResponse
from spark_kafka_sink.errors import KafkaSinkError, UnsupportedVersionError
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.transactions.manager import TransactionManager
from spark_kafka_sink.producer.transactions.states import ENDING, TransactionState
from spark_kafka_sink.producer.transactions.transaction_request import TransactionRequest
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.schema import VersionRange

_LOOK_AGAIN_MS = 10.0
"""How long to wait before asking again, while a broker cannot be asked yet."""


_Request = TransactionRequest[Any]
_NextRequest = Callable[[float, Collection["Node | None"]], "_Request | None"]
"""Of the time, and of nodes that cannot be asked just now."""


class _Asker(Protocol):
    """Who wants something to be asked."""

    def node_for(self, request: _Request) -> Node | None: ...
    def next_delay_ms(self, now: float) -> float: ...
    def sent(self, request: _Request) -> None: ...
    def lost(self, request: _Request, now: float, why: str) -> None: ...
    def answered(self, request: _Request, message: Message, now: float) -> None: ...
    def cannot_be_sent(self, request: _Request, error: KafkaSinkError) -> None: ...


class TransactionTalk:
    def __init__(
        self,
        manager: TransactionManager,
        client: NetworkClient,
        accumulator: RecordAccumulator,
        idempotence: Idempotence,
    ) -> None:
        self._manager = manager
        self._descriptions = manager.descriptions
        self._client = client
        self._accumulator = accumulator
        self._idempotence = idempotence

    def ask(self, now: float) -> float:
        """Ask what is due, if it can be asked now. Returns how long until this must be looked at again."""
        own_ms = self._ask(self._manager, self._own_request, now)
        return min(own_ms, self._ask(self._descriptions, self._descriptions.next_request, now))

    def _own_request(self, now: float, not_ready: Collection[Node | None]) -> _Request | None:
        return None if not_ready else self._manager.next_request(now, quiet=self._is_quiet())

    def _ask(self, asker: _Asker, next_request: _NextRequest, now: float) -> float:
        not_ready: set[Node | None] = set()
        while (request := next_request(now, not_ready)) is not None:
            node = self._ready_node(asker, request, now)
            if node is None:
                not_ready.add(asker.node_for(request))
                continue
            try:
                self._send(request, node, now)
            except UnsupportedVersionError as error:
                asker.cannot_be_sent(request, error)
            else:
                asker.sent(request)
        return min(_LOOK_AGAIN_MS if not_ready else float("inf"), asker.next_delay_ms(now))

    def _send(self, request: _Request, node: Node, now: float) -> None:
        version = self._client.version_for(node.id, request.api_key, request.versions)
        message, versions = request.message(version), VersionRange(version, version)
        self._client.send(self._client.new_client_request(node.id, message, now, tag=request, versions=versions), now)

    def answered(self, response: ClientResponse) -> None:
        request = cast("_Request", response.request.tag)
        asker: _Asker = self._descriptions if self._descriptions.owns(request) else self._manager
        if response.message is None:
            asker.lost(request, response.received_ms, response.reason)
        else:
            asker.answered(request, response.message, response.received_ms)
        self._adopt()

    @property
    def fatal_error(self) -> KafkaSinkError | None:
        return self._manager.error if self._manager.state is TransactionState.FATAL_ERROR else None

    def _adopt(self) -> None:
        """A new epoch may have begun, and what had to wait may leave."""
        if self._manager.id_and_epoch != self._idempotence.id_and_epoch:
            self._idempotence.adopt(self._manager.id_and_epoch)
        self._accumulator.recheck()

    def _is_quiet(self) -> bool:
        """Nothing is on its way into the transaction, not even what has failed for its caller."""
        if self._manager.state not in ENDING or self._accumulator.has_incomplete():
            return False
        return not any(state.on_wire for state in self._idempotence)

    def _ready_node(self, asker: _Asker, request: _Request, now: float) -> Node | None:
        coordinator = asker.node_for(request)
        node = coordinator or self._client.least_loaded_node(now)
        if node is None or self._client.ready(node, now):
            return node
        if coordinator is not None and self._client.connection_failed(node.id):
            loss = self._client.losses.get(node.id)
            asker.lost(request, now, "" if loss is None else loss.reason)  # another may coordinate by now
        return None
