"""BlockingClient: sends requests to the cluster for one thread, which waits for the results.

`send`, or `begin` and `finish`, take typed requests: the engine (pending.py) routes them, and retries them until their
results are final. Several calls may be under way at the same time: all of them go on while one is waited for.

Requests go out in one queue for each node. A node that cannot be reached fails all its requests after one attempt to
connect. A node that sends nothing for `silence_ms` is disconnected as well, and gets twice that time when it is used
again; meanwhile the cluster's metadata are requested, and a node that has left the cluster is not waited for any
longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_kafka_sink.client.cluster import Node, TopicInfo
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.metadata import new_metadata
from spark_kafka_sink.client.network_client import new_network_client
from spark_kafka_sink.client.node_choice import UNRESPONSIVE_MS
from spark_kafka_sink.client.request import ClientResponse
from spark_kafka_sink.client.versions import TRANSACTION_VERSION
from spark_kafka_sink.closing import Closing
from spark_kafka_sink.errors import DisconnectedError, KafkaSinkError, UnsupportedVersionError
from spark_kafka_sink.network.system import OperatingSystem, System
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.deadline import Deadline, pause_ms
from spark_kafka_sink.requests.pending import MAX_UNKNOWN_TOPIC_MS, Attempt, Call, PendingRequests
from spark_kafka_sink.requests.request import Request, ResponseT
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.words import placed

_LEAST_WAIT_MS = 1.0
_NO_LIMIT_MS = 2.0**40
"""Of a single request: the limit is on the silence of its node. It may wait for many others."""


class _Queued(NamedTuple):
    attempt: Attempt
    since_ms: float


@dataclass(eq=False)
class _Line:
    """The requests to one node that have not ended."""

    node: Node
    waiting: deque[_Queued] = field(default_factory=deque)
    sent: dict[int, Attempt] = field(default_factory=dict)
    """By correlation id."""
    tried: bool = False
    """A connection was there, or was attempted, since the first of these requests was queued."""
    heard_ms: float = 0.0


class BlockingClient(Closing):
    """A context manager. Used by one thread. `silence_ms`: request.timeout.ms if it is not given."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        timeout_ms: float = 60_000,
        unresponsive_ms: float | None = None,
        system: System | None = None,
    ) -> None:
        self._system = system if system is not None else OperatingSystem()
        self._timeout_ms = timeout_ms
        self._backoff_ms = config.retry_backoff_ms
        self._silence_ms_max = float(config.request_timeout_ms)
        self._silence_ms = min(self._silence_ms_max, unresponsive_ms or self._silence_ms_max)
        self._lines: dict[int, _Line] = {}
        self._ended = 0  # the number of requests that have ended
        self._times_silent: dict[int, int] = {}  # how often in a row a node was given up because it said nothing
        self.metadata = new_metadata(config, system=self._system, allow_auto_topic_creation=False)
        self._client = new_network_client(config, self.metadata, system=self._system)
        self._pending = PendingRequests(Routing(self.metadata, lambda now: self.any_node()), pause_ms)

    def close(self) -> None:
        self._client.close()

    def topic(self, name: str, *, fresh: bool = False) -> TopicInfo:
        """Wait until the topic's partitions are known. BrokerError if it does not exist, or may not be read.

        `fresh`: what is known is not enough, it may have been deleted, or got more partitions.
        """
        deadline = self.deadline(f"metadata of {placed(name)}")
        known = self.metadata.contains_topic(name)
        self.metadata.add_topic(name, self._system.now())
        older = self.metadata.request_update(reset_backoff=True) if fresh and known else -1
        while True:
            info = self.metadata.snapshot.topics.get(name)
            if info is not None and self.metadata.version > older:
                if info.partitions:
                    return info
                self.metadata.raise_for_topic(name)
                if deadline.waited_ms > MAX_UNKNOWN_TOPIC_MS:
                    raise build_broker_error(info.error_code, placed(name))
                self.metadata.request_update()
            deadline.wait(self.metadata.topic_error(name), self._backoff_ms)

    def leader(self, topic: str, partition: int) -> Node | None:
        """None if no leader is known; then the next wait brings news."""
        leader = self.metadata.snapshot.leader(topic, partition)
        if leader is None:
            self.metadata.request_update()
        return leader

    def all_nodes(self, older: int | None = None) -> list[Node]:
        """The brokers that the cluster has now. `older`: what `metadata.request_update` returned, if a caller has asked
        already."""
        deadline = self.deadline("metadata of the cluster")
        if older is None:
            older = self.metadata.request_update(reset_backoff=True)
        while self.metadata.version <= older:
            deadline.wait(None, self._backoff_ms)
        return list(self.metadata.snapshot.nodes.values())

    def any_node(self) -> Node | None:
        """A node to ask what every broker knows: one that is connected and answers, if there is one."""
        now = self._system.now()
        connected = [node for node in self.metadata.snapshot.nodes.values() if self._client.versions(node.id)]
        if connected:
            return min(connected, key=lambda node: (self._client.unresponsive_ms(node.id, now), self._count(node.id)))
        return self._client.least_loaded_node(now)

    @property
    def transaction_version(self) -> int:
        """Of transactions: what the cluster has agreed on, as far as it is known: 2 or 1."""
        return 2 if self._client.finalized_features.levels.get(TRANSACTION_VERSION, 0) >= 2 else 1

    def deadline(self, attempt: str, timeout_ms: float | None = None) -> Deadline:
        """Limit the time that an attempt may take without progress. `timeout_ms`: the client's by default."""
        return Deadline(self, attempt, self._timeout_ms if timeout_ms is None else timeout_ms)

    def trouble(self) -> str:
        """What is known of why there is no answer: which nodes say nothing, or could not be reached."""
        now = self._system.now()
        silent = [
            f"{line.node} has said nothing for {self._client.unresponsive_ms(line.node.id, now):.0f} ms"
            for line in self._lines.values()
            if (line.waiting or line.sent) and self._client.unresponsive_ms(line.node.id, now) >= UNRESPONSIVE_MS
        ]
        return ". ".join(silent) + "." if silent else self.metadata.describe_connection_failures()

    def now(self) -> float:
        return self._system.now()

    def wall_ms(self) -> int:
        return self._system.wall_ms()

    def pause(self, pause_ms: float) -> None:
        """Let the client work while there is nothing to send; an update of metadata ends the pause."""
        version, until = self.metadata.version, self._system.now() + pause_ms
        while (now := self._system.now()) < until and self.metadata.version == version:
            self._work(now, until - now)

    # --- typed requests

    def send(self, request: Request[ResponseT], timeout_ms: float | None = None) -> ResponseT:
        """Return the final response to a request about one key. `timeout_ms`: without progress; the client's by
        default."""
        (response,) = self.send_all([request], timeout_ms).values()
        return response

    def send_all(self, requests: Iterable[Request[ResponseT]], timeout_ms: float | None = None) -> dict[str, ResponseT]:
        """Return the final response for each key of the requests."""
        return self.finish(self.begin(requests), timeout_ms)

    def begin(self, requests: Iterable[Request[ResponseT]], *, retries: bool = True) -> Call[ResponseT]:
        """Send requests without waiting: the caller must `finish` the call."""
        call = Call(requests, retries=retries, retries_unknown_errors=True)
        self._pending.add(call)
        self._send_due()
        return call

    def finish(self, call: Call[ResponseT], timeout_ms: float | None = None) -> dict[str, ResponseT]:
        """Wait for the final results, and return the responses by key."""
        deadline, progress = self.deadline(call.attempt, timeout_ms), call.progress
        try:
            while not call.is_done:
                deadline.check(call.last_failure)
                self._send_due()
                self.step(min(self._pending.next_due_ms(self._system.now()), deadline.at_ms))
                if call.progress != progress:
                    progress = call.progress
                    deadline.extend()
        finally:
            self.abandon(call)
        return call.results()

    def abandon(self, call: Call[Any]) -> None:
        """End a call: what was not sent is not sent any more, and what was sent is ignored when its response comes."""
        self._pending.remove(call)
        for line in self._lines.values():
            line.waiting = deque(queued for queued in line.waiting if queued.attempt.call is not call)

    def step(self, until_ms: float) -> None:
        """Work until a request has ended, or until that time."""
        ended = self._ended
        while self._ended == ended and (now := self._system.now()) < until_ms:
            self._work(now, until_ms - now)

    # --- the queues of the nodes

    def _send_due(self) -> None:
        now = self._system.now()
        for attempt in self._pending.due(now):
            line = self._lines.setdefault(attempt.node.id, _Line(attempt.node))
            line.node = attempt.node  # perhaps at another address by now
            if not line.waiting and not line.sent:
                line.tried = False
            line.waiting.append(_Queued(attempt, now))
            self._pending.sent(attempt)

    def _work(self, now: float, timeout_ms: float) -> None:
        ended = self._ended
        for line in self._lines.values():
            self._send(line, now)
        if self._ended == ended:
            self._poll(max(0.0, min(timeout_ms, self._give_up_silent(now))))

    def _send(self, line: _Line, now: float) -> None:
        """Send the first that waits; the next one can be sent when this one is written."""
        if not line.waiting:
            return
        node = line.node
        if self._client.ready(node, now):
            line.tried = True
            attempt = line.waiting.popleft().attempt
            try:
                version = self._client.version_for(node.id, attempt.request.api_key, attempt.request.versions)
                message = attempt.request.message(version)
            except UnsupportedVersionError as error:
                self._end_failed(attempt, error)
                return
            request = self._client.new_client_request(
                node.id, message, now, timeout_ms=_NO_LIMIT_MS, versions=VersionRange(version, version)
            )
            line.sent[request.correlation_id] = attempt
            self._client.send(request, now)
            return
        failed = self._client.connection_failed(node.id)
        if failed and line.tried:
            self._fail(line, f"{node} cannot be reached. {self.metadata.describe_connection_failures()}")
        elif now - max(line.heard_ms, line.waiting[0].since_ms) >= self._timeout_ms:
            self._fail(
                line,
                f"{node} was not ready in {self._timeout_ms:.0f} ms. {self.metadata.describe_connection_failures()}",
            )
        line.tried = line.tried or not failed

    def _fail(self, line: _Line, why: str) -> None:
        """All that waits fails. What was sent fails when its connection is lost."""
        waiting, line.waiting = line.waiting, deque()
        for queued in waiting:
            self._end_failed(queued.attempt, DisconnectedError(why))

    def _end_failed(self, attempt: Attempt, error: KafkaSinkError) -> None:
        self._ended += 1
        self._pending.failed(attempt, error, self._system.now())

    def _give_up_silent(self, now: float) -> float:
        """Leave nodes that have said nothing for too long. Returns how long until this must be looked at again."""
        known = self.metadata.snapshot
        look_again_ms = self._backoff_ms if any(line.waiting for line in self._lines.values()) else UNRESPONSIVE_MS
        for node_id in {*self._lines, *known.nodes}:
            unresponsive_ms = self._client.unresponsive_ms(node_id, now)
            limit_ms = min(self._silence_ms * 2.0 ** min(self._times_silent.get(node_id, 0), 30), self._silence_ms_max)
            if unresponsive_ms >= limit_ms:
                self._times_silent[node_id] = self._times_silent.get(node_id, 0) + 1
                self._leave(node_id, f"did not answer within {limit_ms:.0f} ms", now)
            elif unresponsive_ms >= UNRESPONSIVE_MS:
                self.metadata.request_update()
                if not known.is_bootstrap and node_id not in known.nodes:
                    self._leave(node_id, "said nothing, and has left the cluster", now)
            if 0 < unresponsive_ms < limit_ms:
                # What is left may be less than the clock can tell: then the time would never come.
                look_again_ms = min(look_again_ms, max(limit_ms - unresponsive_ms, _LEAST_WAIT_MS))
        return look_again_ms

    def _leave(self, node_id: int, why: str, now: float) -> None:
        line = self._lines.get(node_id)
        name = line.node if line is not None else self.metadata.snapshot.nodes.get(node_id, f"node {node_id}")
        self._client.disconnect(node_id, f"{name} {why}", now)
        if line is not None:
            self._fail(line, f"{name} {why}")

    def _poll(self, timeout_ms: float) -> None:
        self.metadata.raise_if_fatal()
        for response in self._client.poll(timeout_ms, self._system.now()):
            self._take(response)
        self.metadata.raise_if_fatal()

    def _take(self, response: ClientResponse) -> None:
        line = self._lines[response.request.node_id]
        attempt = line.sent.pop(response.request.correlation_id)
        if response.message is not None:
            self._times_silent.pop(line.node.id, None)
            line.heard_ms = response.received_ms
            self._ended += 1
            self._pending.responded(attempt, response.message, self._system.now())
        else:
            lost = DisconnectedError(response.reason)
            self._end_failed(attempt, response.version_error or response.authentication_error or lost)

    def _count(self, node_id: int) -> int:
        line = self._lines.get(node_id)
        return 0 if line is None else len(line.waiting) + len(line.sent)
