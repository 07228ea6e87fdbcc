"""PendingRequests: sends requests to the cluster until each of their keys has a final result. Without IO or a clock.

Each key of a call (a transactional id, a topic, a partition) is in one of four states:

    due          may be sent, at once or when its pause is over
    looking up   due, but its coordinator is unknown: a broker was sent FindCoordinator for all such keys of the call
    in flight    was sent to its broker
    done         has a final result: a response, for the caller to judge, or an error

The driver sends what is `due`, one request to a broker about all keys that it is the node for, and reports what becomes
of it: `sent`, then `responded` or `failed`. A key that was rejected for now, or whose node was lost, is due again after
a pause that grows. There are two drivers: requests/blocking.py for a thread that waits for the result, and
requests/polled.py for the owner of a client that polls it: the sender of a producer, and preflight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, cast

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, NetworkError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.requests.find_coordinator import FindCoordinator
from spark_kafka_sink.requests.request import CoordinatorKey, Leader, Request, ResponseT, Role, Route
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.verdicts import MISSING_IN_RESPONSE, Classification, Verdict

POLL_INTERVAL_MS = 10.0
"""When to look again while no node can be used, or while the leader of a partition is unknown."""

MAX_UNKNOWN_TOPIC_MS = 5_000.0
"""How long brokers may not know a topic that was created a moment ago."""

_CONCURRENT_PAUSE_MS = 20.0
_MAX_DOUBLINGS = 10


class Call(Generic[ResponseT]):
    """Requests of one caller, until each of their keys has a final result."""

    def __init__(
        self,
        requests: Iterable[Request[ResponseT]],
        *,
        retries: bool = True,
        retries_unknown_errors: bool = False,
    ) -> None:
        """`retries`: whether anything is sent twice. `retries_unknown_errors`: whether UNKNOWN_SERVER_ERROR is retried,
        for a caller that can wait."""
        self._requests = {key: request for request in requests for key in request.keys}
        self.retries = retries
        self._retries_unknown_errors = retries_unknown_errors
        self.due: dict[str, float] = dict.fromkeys(self._requests, 0.0)
        """When each key that is neither in flight nor done may be sent."""
        self.in_flight: set[str] = set()
        self.lookup: Attempt | None = None
        """The lookup of coordinators that is in flight."""
        self.failures: dict[str, int] = {}
        """The number of consecutive failures of each key."""
        self.unknown_since: dict[str, float] = {}
        """The time since when brokers do not know the topic of each key."""
        self.last_failure: KafkaSinkError | None = None
        self.responses: dict[str, ResponseT] = {}
        self.error: KafkaSinkError | None = None
        """The first final error of a key."""
        self.in_doubt: set[str] = set()
        """Keys of which a response was lost: the broker may have carried out the request, or may do so yet."""
        self.progress = 0
        """Grows with each key that is done."""

    @property
    def is_done(self) -> bool:
        return not self.due and not self.in_flight

    @property
    def attempt(self) -> str:
        """The attempt in words, for errors."""
        key, request = next(iter(self._requests.items()), ("", None))
        if request is None:
            return "the attempt"
        subject = f"{request.subject(key)}: " if len(self._requests) == 1 and request.subject(key) else ""
        return f"{subject}the attempt to {request.action}"

    def results(self) -> dict[str, ResponseT]:
        """Return the responses by key, in the order of the requests. Raise the first final error."""
        if self.error is not None:
            raise self.error
        return {key: self.responses[key] for key in self._requests}

    # --- called by the engine

    def refresh(self, now: float) -> None:
        """Update `due` before it is read, for a call whose requests follow from a state."""

    def request_for(self, key: str) -> Request[ResponseT]:
        """Return the request to send for a key that is due."""
        return self._requests[key]

    def may_send(self, request: Request[ResponseT]) -> bool:
        """Return whether the request may leave. Called right before its bytes leave."""
        return True

    def verdict(self, classification: Classification) -> Verdict:
        is_unknown = classification.code == codes.UNKNOWN_SERVER_ERROR
        return Verdict.RETRY if is_unknown and self._retries_unknown_errors else classification.verdict

    def lost(self, request: Request[ResponseT], keys: Sequence[str], *, was_sent: bool) -> None:
        """Note that no response will come."""
        if was_sent:
            self.in_doubt.update(keys)

    def responded(self, request: Request[ResponseT], response: ResponseT) -> None:
        """Note a response, before the result of each key."""

    def done(self, request: Request[ResponseT], key: str, response: ResponseT, now: float) -> None:
        """Note the final response for a key."""
        self.responses[key] = response
        self.progress += 1

    def failed(self, key: str, error: KafkaSinkError, verdict: Verdict, now: float) -> None:
        """Note a final error: the request about a key cannot be sent, or its coordinator cannot be looked up."""
        self.error = self.error or error
        self.progress += 1

    def retrying(self, failure: KafkaSinkError) -> None:
        """Note why a key has failed that will be sent again."""
        self.last_failure = failure


@dataclass(frozen=True, eq=False)
class Attempt:
    """One request of a call to one node, about some of its keys; or the lookup of their coordinators."""

    call: Call[Any]
    request: Request[Any]
    node: Node
    keys: Sequence[str]
    is_lookup: bool = False

    @property
    def is_for_any_node(self) -> bool:
        """Return whether any other node would do as well."""
        return self.request.route(self.keys[0]) is Role.ANY_BROKER


class PendingRequests:
    """Used by one thread."""

    def __init__(self, routing: Routing, backoff_ms: Callable[[int], float]) -> None:
        """`backoff_ms`: the pause after this many failures in a row."""
        self.routing = routing
        self._backoff_ms = backoff_ms
        self._calls: list[Call[Any]] = []
        self._sent: set[Attempt] = set()
        self._waits_for_node = False

    def add(self, call: Call[Any]) -> None:
        self._calls.append(call)

    def remove(self, call: Call[Any]) -> None:
        """Forget a call. What was sent for it is ignored when it ends."""
        if call in self._calls:
            self._calls.remove(call)
        self._sent = {attempt for attempt in self._sent if attempt.call is not call}

    # --- send

    def due(self, now: float) -> list[Attempt]:
        """Return what may be sent now. Nothing changes until it is `sent`."""
        self._waits_for_node = False
        return [attempt for call in list(self._calls) for attempt in self._due_of(call, now)]

    def _due_of(self, call: Call[Any], now: float) -> list[Attempt]:
        call.refresh(now)
        together: dict[tuple[Node, Request[Any]], list[str]] = {}
        unknown: CoordinatorKey | None = None
        for key, due_ms in list(call.due.items()):
            if due_ms > now:
                continue
            request = call.request_for(key)
            route = request.route(key)
            node = self.routing.find(route, now)
            if node is not None:
                call.unknown_since.pop(key, None)
                together.setdefault((node, request), []).append(key)
            elif isinstance(route, CoordinatorKey):
                unknown = route
            else:
                self._waits_for_node = True
                self._fail_without_topic(call, key, route, now)
        attempts = [Attempt(call, each.subset(keys), node, keys) for (node, each), keys in together.items()]
        if unknown is not None and call.lookup is None:
            attempts += self._new_lookup(call, unknown.key_type, now)
        return attempts

    def _fail_without_topic(self, call: Call[Any], key: str, route: Route, now: float) -> None:
        """End a key whose topic has been unknown for too long: it was deleted."""
        error = self.routing.topic_error(route.topic) if isinstance(route, Leader) else None
        if not isinstance(error, BrokerError) or error.code != codes.UNKNOWN_TOPIC_OR_PARTITION:
            call.unknown_since.pop(key, None)
        elif now - call.unknown_since.setdefault(key, now) >= MAX_UNKNOWN_TOPIC_MS:
            self._fail(call, key, error, Verdict.FATAL, now)

    def _new_lookup(self, call: Call[Any], key_type: int, now: float) -> list[Attempt]:
        """One request for all unknown coordinators of this type, also of keys whose pause is not over."""
        routes = {route for _, route in self._coordinators_of(call, key_type) if self.routing.find(route, now) is None}
        node = self.routing.find(Role.ANY_BROKER, now)
        if node is None:
            self._waits_for_node = True
            return []
        request = FindCoordinator(sorted(route.key for route in routes), key_type)
        return [Attempt(call, request, node, request.keys, is_lookup=True)]

    def next_due_ms(self, now: float) -> float:
        """Return when `due` may have something new, unless a response comes before."""
        if self._waits_for_node:
            return now + POLL_INTERVAL_MS
        later = (due_ms for call in self._calls for due_ms in call.due.values() if due_ms > now)
        return min(later, default=float("inf"))

    def sent(self, attempt: Attempt) -> None:
        self._sent.add(attempt)
        if attempt.is_lookup:
            attempt.call.lookup = attempt
            return
        for key in attempt.keys:
            attempt.call.in_flight.add(key)
            attempt.call.due.pop(key, None)

    # --- take what comes

    def responded(self, attempt: Attempt, response: Message, now: float) -> None:
        if attempt not in self._sent:
            return
        self._sent.discard(attempt)
        call, request = attempt.call, attempt.request
        if attempt.is_lookup:
            self._looked_up(call, cast("FindCoordinator", request), response, now)
            return
        call.responded(request, response)
        classifications = request.classify_keys(response)
        for key in attempt.keys:
            call.in_flight.discard(key)  # one by one: the call is not done before the last of them
            classification = classifications.get(key, MISSING_IN_RESPONSE)
            verdict = call.verdict(classification)
            if verdict not in (Verdict.RETRY, Verdict.LOOK_UP):
                call.failures.pop(key, None)
                call.done(request, key, response, now)
                continue
            if verdict is Verdict.LOOK_UP or not isinstance(request.route(key), CoordinatorKey):
                self.routing.forget(request.route(key))
            self._retry(call, key, now, request.rejection(key, classification), classification.code)

    def failed(self, attempt: Attempt, error: KafkaSinkError, now: float) -> None:
        """Take an attempt that ended without a response, or that could not be sent at all."""
        was_sent = attempt in self._sent
        self._sent.discard(attempt)
        call, request = attempt.call, attempt.request
        if call not in self._calls:
            return
        if attempt.is_lookup:
            self._lookup_failed(call, cast("FindCoordinator", request), error, now)
            return
        if isinstance(error, NetworkError):
            call.lost(request, attempt.keys, was_sent=was_sent)
        for key in attempt.keys:
            call.in_flight.discard(key)
            if isinstance(error, NetworkError):
                self.routing.forget(request.route(key))
                self._retry(call, key, now, error)
            else:
                self._fail(call, key, error, Verdict.FATAL, now)

    def _looked_up(self, call: Call[Any], lookup: FindCoordinator, response: Any, now: float) -> None:
        call.lookup = None
        for name, node in lookup.coordinators(response).items():
            self.routing.add_coordinator(CoordinatorKey(lookup.key_type, name), node)
        classifications = lookup.classify_keys(response)
        for key, route in self._coordinators_of(call, lookup.key_type):
            classification = classifications.get(route.key, MISSING_IN_RESPONSE)
            verdict = call.verdict(classification)
            if route.key not in lookup.keys or verdict is Verdict.DONE:
                continue
            error = lookup.rejection(route.key, classification)
            if verdict is Verdict.RETRY:
                self._retry(call, key, now, error)
            else:
                self._fail(call, key, error, verdict, now)

    def _lookup_failed(self, call: Call[Any], lookup: FindCoordinator, error: KafkaSinkError, now: float) -> None:
        call.lookup = None
        for key, route in self._coordinators_of(call, lookup.key_type):
            if route.key not in lookup.keys:
                continue
            if isinstance(error, NetworkError):
                self._retry(call, key, now, error)
            else:
                self._fail(call, key, error, Verdict.FATAL, now)

    @staticmethod
    def _coordinators_of(call: Call[Any], key_type: int) -> list[tuple[str, CoordinatorKey]]:
        """Return the keys that are not in flight and are for a coordinator of this type, with their routes."""
        routes = [(key, call.request_for(key).route(key)) for key in call.due]
        return [
            (key, route) for key, route in routes if isinstance(route, CoordinatorKey) and route.key_type == key_type
        ]

    @staticmethod
    def _fail(call: Call[Any], key: str, error: KafkaSinkError, verdict: Verdict, now: float) -> None:
        call.due.pop(key, None)
        call.failed(key, error, verdict, now)

    def _retry(self, call: Call[Any], key: str, now: float, failure: KafkaSinkError, code: int = codes.NONE) -> None:
        if not call.retries:
            self._fail(call, key, failure, Verdict.RETRY, now)
            return
        call.retrying(failure)
        failures = call.failures.get(key, 0)
        call.failures[key] = failures + 1
        call.due[key] = now + self.pause_ms(failures, code)

    def pause_ms(self, failures: int, code: int = codes.NONE) -> float:
        """Return the pause after a failure. `failures`: how often in a row the key had failed before.

        The coordinator completes the previous transaction within moments, so CONCURRENT_TRANSACTIONS is retried sooner.
        """
        pause_ms = self._backoff_ms(failures)
        if code == codes.CONCURRENT_TRANSACTIONS:
            return min(pause_ms, _CONCURRENT_PAUSE_MS * 2.0 ** min(failures, _MAX_DOUBLINGS))
        return pause_ms
