"""RequestEngine: routes and retries requests until each of their keys has a final result.

A request has one or more keys, such as transactional ids, topics or partitions. The engine retries each key separately.
The requests that a caller sends together form a call. Each key of a call is in one of four states:

    due          may be sent, either now or after a backoff
    looking up   due, but its coordinator is unknown; FindCoordinator was sent for all such keys of the call
    in flight    sent to its broker, or queued to be sent
    done         has a final result: either a response, which the caller evaluates, or an error

The engine does no I/O and has no clock. Another module drives it, in a loop:

    1. It calls `find_due_attempts`, which returns attempts. An attempt is one request to one node. It contains all keys
       of the request that this node handles.
    2. It sends each attempt, and calls `mark_sent`. If it queues the attempt first, it calls `mark_queued`.
    3. When the attempt ends, it calls `handle_response` or `handle_failure`. If a key's error is retriable, or the
       connection was lost, the key becomes due again after a backoff that grows with each failure.

Two modules do this. blocking.py serves threads that wait for the results. dispatcher.py serves code that polls its own
client: the producer's sender and preflight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, cast

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import BrokerError, KafkaSinkError, NetworkError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.requests.request import CoordinatorRoute, LeaderRoute, Request, ResponseT, Role, Route
from spark_kafka_sink.requests.routing import Routing
from spark_kafka_sink.requests.verdicts import MISSING_IN_RESPONSE, Classification, Verdict

if TYPE_CHECKING:
    from spark_kafka_sink.requests.find_coordinator import FindCoordinator

POLL_INTERVAL_MS = 10.0
"""The interval between checks while no node is available or a partition's leader is unknown."""

MAX_UNKNOWN_TOPIC_MS = 5_000.0
"""The time limit for retries of UNKNOWN_TOPIC_OR_PARTITION, because brokers learn about a new topic one by one."""

_FIRST_CONCURRENT_TRANSACTIONS_BACKOFF_MS = 20.0
"""The backoff after the first CONCURRENT_TRANSACTIONS; it doubles with each further failure."""

_MAX_DOUBLINGS = 10


@dataclass(slots=True)
class RetryState:
    """The failures of one key since its request last succeeded."""

    failure_count: int = 0
    """Number of consecutive failures."""
    topic_unknown_since_ms: float | None = None
    """Time at which brokers first reported the key's topic as unknown; None while the topic is known."""


class Call(Generic[ResponseT]):
    """The requests of one caller, and the state of each of their keys."""

    def __init__(
        self,
        requests: Iterable[Request[ResponseT]],
        *,
        should_retry: bool = True,
        should_retry_unknown_errors: bool = False,
    ) -> None:
        """Create a call in which all keys of the requests are due.

        `should_retry`: whether to retry keys after retriable errors and lost connections.
        `should_retry_unknown_errors`: whether to retry keys after UNKNOWN_SERVER_ERROR, too.
        """
        self._requests = {key: request for request in requests for key in request.keys}
        self.should_retry = should_retry
        self._should_retry_unknown_errors = should_retry_unknown_errors
        self.due_ms_by_key: dict[str, float] = dict.fromkeys(self._requests, 0.0)
        """Earliest time at which each pending key may be sent. A pending key is neither in flight nor done."""
        self.in_flight_keys: set[str] = set()
        self.retry_states: defaultdict[str, RetryState] = defaultdict(RetryState)
        """Failures of each key that has been tried."""
        self.lookup_attempt: Attempt | None = None
        """The coordinator lookup in flight."""
        self.last_failure: KafkaSinkError | None = None
        """The latest failure that led to a retry."""
        self.responses: dict[str, ResponseT] = {}
        """The final responses by key. A key without a final response, for example because it has failed, is missing."""
        self.error: KafkaSinkError | None = None
        """The first error with which a key has failed."""
        self.in_doubt_keys: set[str] = set()
        """Keys whose response was lost. The broker may already have executed the request, or may still do so."""
        self.done_count = 0
        """The number of keys that are done."""

    @property
    def is_done(self) -> bool:
        return not self.due_ms_by_key and not self.in_flight_keys

    @property
    def operation(self) -> str:
        """The name of the operation in error messages, such as "topic t: the attempt to create the topic"."""
        key, request = next(iter(self._requests.items()), ("", None))
        if request is None:
            return "the attempt"
        subject = request.describe_subject(key) if len(self._requests) == 1 else ""
        return f"{subject}: the attempt to {request.action}" if subject else f"the attempt to {request.action}"

    def results(self) -> dict[str, ResponseT]:
        """Return the responses by key, in the order of the requests. Raise `error` if a key failed."""
        if self.error is not None:
            raise self.error
        return {key: self.responses[key] for key in self._requests}

    # --- called by the engine

    def update_due_keys(self, now_ms: float) -> None:
        """Update `due_ms_by_key`. The engine calls this before it reads the dict.

        The base class does nothing. A call whose requests depend on changing state overrides this method.
        """

    def get_request(self, key: str) -> Request[ResponseT]:
        """Return the request to send for a due key."""
        return self._requests[key]

    def try_begin_sending(self, request: Request[ResponseT]) -> bool:
        """Record that the request is about to be sent, and return True. Return False if it must not be sent.

        RequestDispatcher calls this immediately before it sends the request. The base class allows every request.
        """
        return True

    def compute_verdict(self, classification: Classification) -> Verdict:
        """Return the verdict on a key's error code. If the call asks for it, UNKNOWN_SERVER_ERROR gets RETRY."""
        is_unknown = classification.code == codes.UNKNOWN_SERVER_ERROR
        return Verdict.RETRY if is_unknown and self._should_retry_unknown_errors else classification.verdict

    def handle_disconnect(self, request: Request[ResponseT], keys: Sequence[str], *, was_sent: bool) -> None:
        """Handle a lost connection: these keys will get no response.

        `was_sent`: whether the request had been sent. If so, the broker may have executed it.
        """
        if was_sent:
            self.in_doubt_keys.update(keys)

    def handle_response(self, request: Request[ResponseT], response: ResponseT) -> None:
        """Handle a response as a whole, before the results of its individual keys are handled."""

    def handle_result(self, request: Request[ResponseT], key: str, response: ResponseT, now_ms: float) -> None:
        """Handle the final response for a key."""
        self.responses[key] = response
        self.done_count += 1

    def handle_failure(self, key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        """Handle the final error of a key that gets no final response, for example because it is not retried."""
        self.error = self.error or error
        self.done_count += 1

    def handle_retry(self, failure: KafkaSinkError) -> None:
        """Handle a failed key that will be retried."""
        self.last_failure = failure


@dataclass(frozen=True, eq=False)
class Attempt:
    """A request to one node for some of a call's keys, or a lookup of their coordinators."""

    call: Call[Any]
    request: Request[Any]
    node: Node
    keys: Sequence[str]
    is_lookup: bool = False

    @property
    def is_for_any_node(self) -> bool:
        """Whether any node can handle the request."""
        return self.request.route(self.keys[0]) is Role.ANY_BROKER


class RequestEngine:
    """Routes and retries the requests of calls. Not thread-safe."""

    def __init__(self, routing: Routing, compute_base_backoff_ms: Callable[[int], float]) -> None:
        """`compute_base_backoff_ms`: takes the number of failures before the latest one, and returns the backoff."""
        self.routing = routing
        self._compute_base_backoff_ms = compute_base_backoff_ms
        self._calls: list[Call[Any]] = []
        self._sent_attempts: set[Attempt] = set()
        self._is_waiting_for_node = False  # whether a due key could not be sent because no node is known or available

    def add(self, call: Call[Any]) -> None:
        self._calls.append(call)

    def remove(self, call: Call[Any]) -> None:
        """Remove a call. Responses to its requests in flight will be ignored."""
        if call in self._calls:
            self._calls.remove(call)
        self._sent_attempts = {attempt for attempt in self._sent_attempts if attempt.call is not call}

    # --- send

    def find_due_attempts(self, now_ms: float) -> list[Attempt]:
        """Return the attempts to send now. The next call returns an attempt again, unless it is marked first.

        Keys whose topic has been unknown for MAX_UNKNOWN_TOPIC_MS fail.
        """
        self._is_waiting_for_node = False
        return [attempt for call in list(self._calls) for attempt in self._build_due_attempts(call, now_ms)]

    def _build_due_attempts(self, call: Call[Any], now_ms: float) -> list[Attempt]:
        """Group the call's due keys by node and request, and return one attempt for each group.

        Also return a coordinator lookup if a key needs one and none is in flight. Fail keys whose topic stays unknown.
        Set `_is_waiting_for_node` if no node is known or available for another key or for the lookup.
        """
        call.update_due_keys(now_ms)
        keys_by_target: dict[tuple[Node, Request[Any]], list[str]] = {}
        # It is enough to remember one key without a coordinator, because the lookup below covers all keys of that type.
        # Coordinators of the other type are looked up afterwards.
        unknown_coordinator: CoordinatorRoute | None = None
        # Iterate over a copy, because `_fail_if_topic_stays_unknown` may remove keys.
        for key, due_ms in list(call.due_ms_by_key.items()):
            if due_ms > now_ms:
                continue
            request = call.get_request(key)
            route = request.route(key)
            node = self.routing.find_node(route, now_ms)
            if node is not None:
                call.retry_states[key].topic_unknown_since_ms = None
                keys_by_target.setdefault((node, request), []).append(key)
            elif isinstance(route, CoordinatorRoute):
                unknown_coordinator = route
            else:
                self._is_waiting_for_node = True
                self._fail_if_topic_stays_unknown(call, key, route, now_ms)
        attempts = [
            Attempt(call, request.select_keys(keys), node, keys) for (node, request), keys in keys_by_target.items()
        ]
        if unknown_coordinator is not None and call.lookup_attempt is None:
            lookup_attempt = self._build_lookup_attempt(call, unknown_coordinator.key_type, now_ms)
            if lookup_attempt is not None:
                attempts.append(lookup_attempt)
            else:
                self._is_waiting_for_node = True
        return attempts

    def _fail_if_topic_stays_unknown(self, call: Call[Any], key: str, route: Route, now_ms: float) -> None:
        """Fail a key whose topic or partition has been unknown for MAX_UNKNOWN_TOPIC_MS. Record when that began."""
        retry_state = call.retry_states[key]
        error = self.routing.find_leader_error(route) if isinstance(route, LeaderRoute) else None
        if not isinstance(error, BrokerError) or error.code != codes.UNKNOWN_TOPIC_OR_PARTITION:
            retry_state.topic_unknown_since_ms = None
        elif retry_state.topic_unknown_since_ms is None:
            retry_state.topic_unknown_since_ms = now_ms
        elif now_ms - retry_state.topic_unknown_since_ms >= MAX_UNKNOWN_TOPIC_MS:
            self._fail(call, key, error, Verdict.FATAL, now_ms)

    def _build_lookup_attempt(self, call: Call[Any], key_type: int, now_ms: float) -> Attempt | None:
        """Build one request that looks up every unknown coordinator of this type, including those of keys in backoff.

        Return None if no node can handle the request now.
        """
        from spark_kafka_sink.requests.find_coordinator import FindCoordinator  # needed only with transactions

        routes = {
            route
            for _, route in self._list_pending_coordinator_keys(call, key_type)
            if self.routing.find_node(route, now_ms) is None
        }
        node = self.routing.find_node(Role.ANY_BROKER, now_ms)
        if node is None:
            return None
        request = FindCoordinator(sorted(route.key for route in routes), key_type)
        return Attempt(call, request, node, request.keys, is_lookup=True)

    def next_due_ms(self, now_ms: float) -> float:
        """Return the time at which to call `find_due_attempts` next, unless a response arrives earlier.

        Return inf if only a response can make a key due.
        """
        if self._is_waiting_for_node:
            return now_ms + POLL_INTERVAL_MS
        later_due_ms = (due_ms for call in self._calls for due_ms in call.due_ms_by_key.values() if due_ms > now_ms)
        return min(later_due_ms, default=float("inf"))

    def mark_sent(self, attempt: Attempt) -> None:
        """Record that an attempt was sent. If it fails from now on, its keys are in doubt."""
        self.mark_queued(attempt)
        self._sent_attempts.add(attempt)

    def mark_queued(self, attempt: Attempt) -> None:
        """Record that an attempt will be sent. Its keys are in flight until its response or failure is handled."""
        if attempt.is_lookup:
            attempt.call.lookup_attempt = attempt
            return
        for key in attempt.keys:
            attempt.call.in_flight_keys.add(key)
            attempt.call.due_ms_by_key.pop(key, None)

    # --- results

    def handle_response(self, attempt: Attempt, response: Message, now_ms: float) -> None:
        """Handle the response to an attempt. Ignore it if the attempt's call was removed."""
        if attempt not in self._sent_attempts:
            return
        self._sent_attempts.discard(attempt)
        call, request = attempt.call, attempt.request
        if attempt.is_lookup:
            self._handle_lookup_response(call, cast("FindCoordinator", request), response, now_ms)
            return
        call.handle_response(request, response)
        classifications = request.classify_keys(response)
        for key in attempt.keys:
            # Do this in the loop, so that the call does not count as done before its last key is handled.
            call.in_flight_keys.discard(key)
            classification = classifications.get(key, MISSING_IN_RESPONSE)
            verdict = call.compute_verdict(classification)
            if verdict in (Verdict.RETRY, Verdict.LOOK_UP):
                self._retry_rejected_key(call, request, key, classification, verdict, now_ms)
            else:
                call.retry_states[key].failure_count = 0
                call.handle_result(request, key, response, now_ms)

    def handle_failure(self, attempt: Attempt, error: KafkaSinkError, now_ms: float) -> None:
        """Handle an attempt that ended without a response, or could not be sent."""
        was_sent = attempt in self._sent_attempts
        self._sent_attempts.discard(attempt)
        call, request = attempt.call, attempt.request
        # Check the call rather than `_sent_attempts`, which does not contain attempts that were never sent.
        if call not in self._calls:
            return
        if attempt.is_lookup:
            self._handle_lookup_failure(call, cast("FindCoordinator", request), error, now_ms)
            return
        if isinstance(error, NetworkError):
            call.handle_disconnect(request, attempt.keys, was_sent=was_sent)
        for key in attempt.keys:
            call.in_flight_keys.discard(key)
            if isinstance(error, NetworkError):
                self.routing.forget(request.route(key))  # another node may be responsible for the key now
                self._retry(call, key, error, now_ms)
            else:
                self._fail(call, key, error, Verdict.FATAL, now_ms)

    def _retry_rejected_key(
        self,
        call: Call[Any],
        request: Request[Any],
        key: str,
        classification: Classification,
        verdict: Verdict,
        now_ms: float,
    ) -> None:
        """Retry a key that a broker has rejected. If its node may have changed, look up the node again."""
        route = request.route(key)
        # After any retriable error, the leader or controller may have changed. If a coordinator has changed, brokers
        # report this with codes of its own, whose verdict is LOOK_UP.
        if verdict is Verdict.LOOK_UP or not isinstance(route, CoordinatorRoute):
            self.routing.forget(route)
        error = request.build_rejection_error(key, classification)
        self._retry(call, key, error, now_ms, code=classification.code)

    def _handle_lookup_response(self, call: Call[Any], lookup: FindCoordinator, response: Any, now_ms: float) -> None:
        """Cache the coordinators in the response, and retry or fail each key whose lookup was rejected."""
        call.lookup_attempt = None
        for coordinator_key, node in lookup.parse_coordinators(response).items():
            self.routing.add_coordinator(CoordinatorRoute(lookup.key_type, coordinator_key), node)
        classifications = lookup.classify_keys(response)
        for key, route in self._list_looked_up_keys(call, lookup):
            classification = classifications.get(route.key, MISSING_IN_RESPONSE)
            verdict = call.compute_verdict(classification)
            if verdict is Verdict.DONE:
                continue  # the coordinator was found; the key stays due and is sent to it next
            error = lookup.build_rejection_error(route.key, classification)
            if verdict is Verdict.RETRY:
                self._retry(call, key, error, now_ms)
            else:
                self._fail(call, key, error, verdict, now_ms)

    def _handle_lookup_failure(
        self, call: Call[Any], lookup: FindCoordinator, error: KafkaSinkError, now_ms: float
    ) -> None:
        """Retry or fail each key whose lookup got no response."""
        call.lookup_attempt = None
        for key, _ in self._list_looked_up_keys(call, lookup):
            if isinstance(error, NetworkError):
                self._retry(call, key, error, now_ms)
            else:
                self._fail(call, key, error, Verdict.FATAL, now_ms)

    def _list_looked_up_keys(self, call: Call[Any], lookup: FindCoordinator) -> list[tuple[str, CoordinatorRoute]]:
        """Return the call's pending keys whose coordinators this lookup has requested, each with its route.

        It has not requested coordinators that were known, or whose keys became due only after it was sent.
        """
        pending_keys = self._list_pending_coordinator_keys(call, lookup.key_type)
        return [(key, route) for key, route in pending_keys if route.key in lookup.coordinator_keys]

    @staticmethod
    def _list_pending_coordinator_keys(call: Call[Any], key_type: int) -> list[tuple[str, CoordinatorRoute]]:
        """Return the call's pending keys that go to a coordinator of this type, each with its route.

        A pending key is neither in flight nor done. Keys whose backoff has not ended yet are included.
        """
        routes = [(key, call.get_request(key).route(key)) for key in call.due_ms_by_key]
        return [
            (key, route) for key, route in routes if isinstance(route, CoordinatorRoute) and route.key_type == key_type
        ]

    @staticmethod
    def _fail(call: Call[Any], key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        """Make the error a key's final result."""
        call.due_ms_by_key.pop(key, None)
        call.handle_failure(key, error, verdict, now_ms)

    def _retry(self, call: Call[Any], key: str, error: KafkaSinkError, now_ms: float, code: int = codes.NONE) -> None:
        """Make a key due again after a backoff, or fail it if the call must not be retried.

        `code`: the error code with which a broker rejected the key, if one did.
        """
        if not call.should_retry:
            self._fail(call, key, error, Verdict.RETRY, now_ms)
            return
        call.handle_retry(error)
        retry_state = call.retry_states[key]
        call.due_ms_by_key[key] = now_ms + self.compute_backoff_ms(retry_state.failure_count, code)
        retry_state.failure_count += 1

    def compute_backoff_ms(self, previous_failure_count: int, code: int = codes.NONE) -> float:
        """Return the backoff of a key after a failure with this error code.

        CONCURRENT_TRANSACTIONS is retried sooner, because a coordinator soon completes the previous transaction.

        `previous_failure_count`: the number of consecutive failures before this one.
        """
        backoff_ms = self._compute_base_backoff_ms(previous_failure_count)
        if code == codes.CONCURRENT_TRANSACTIONS:
            doublings = min(previous_failure_count, _MAX_DOUBLINGS)
            return min(backoff_ms, _FIRST_CONCURRENT_TRANSACTIONS_BACKOFF_MS * 2.0**doublings)
        return backoff_ms
