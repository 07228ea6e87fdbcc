"""ProducerIdCall: requests producer ids for idempotent producers without a transactional.id."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError, KafkaSinkError
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.init_producer_id import InitProducerId, parse_producer_id_and_epoch
from spark_kafka_sink.requests.request import Request
from spark_kafka_sink.requests.verdicts import Verdict


class ProducerIdCall(Call[InitProducerIdResponse]):
    """The sender's InitProducerId request, which is sent whenever the sender needs a producer id.

    Unlike other calls, this one stays in the request engine (requests/engine.py) for the producer's lifetime.
    """

    def __init__(
        self,
        is_needed: Callable[[], bool],
        set_producer_id_and_epoch: Callable[[ProducerIdAndEpoch], None],
        on_failure: Callable[[KafkaSinkError, float], None],
        compute_backoff_ms: Callable[[int], float],
    ) -> None:
        """Create the call with the functions that connect it to the sender.

        `is_needed`: returns whether any records are waiting for a producer id.
        `set_producer_id_and_epoch`: called with each producer id and epoch that a broker has assigned.
        `on_failure`: called with the error of a failed request, and the time of the failure.
        `compute_backoff_ms`: returns the backoff after a failure, given the number of consecutive failures before it.
        """
        super().__init__([InitProducerId(transactional_id=None)])
        self._is_needed = is_needed
        self._set_producer_id_and_epoch = set_producer_id_and_epoch
        self._on_failure = on_failure
        self._compute_backoff_ms = compute_backoff_ms
        (self._key,) = self.due_ms_by_key  # this call has a single request with a single key
        self._next_attempt_ms = 0.0
        self._failure_count = 0

    def update_due_keys(self, now_ms: float) -> None:
        """Make the request due if a producer id is needed, but not before its backoff has ended."""
        if self.in_flight_keys:
            return
        # Save the due time before removing the key. After a retriable error, the engine postpones the key, and that
        # backoff must still apply if the producer id is not needed for a while and then needed again.
        self._next_attempt_ms = self.due_ms_by_key.get(self._key, self._next_attempt_ms)
        self.due_ms_by_key = {self._key: self._next_attempt_ms} if self._is_needed() else {}

    def handle_result(
        self, request: Request[InitProducerIdResponse], key: str, response: InitProducerIdResponse, now_ms: float
    ) -> None:
        """Pass the assigned producer id and epoch to the sender.

        If the broker has rejected the request, or has returned a negative id or epoch, handle that as a failure.
        """
        classification = request.classify(response)
        if classification.verdict is not Verdict.DONE:
            rejection = request.build_rejection_error(key, classification)
            self.handle_failure(key, rejection, classification.verdict, now_ms)
            return
        try:
            id_and_epoch = parse_producer_id_and_epoch(response)
        except DecodeError as error:
            self.handle_failure(key, error, Verdict.FATAL, now_ms)
            return
        self._failure_count = 0
        self._set_producer_id_and_epoch(id_and_epoch)

    def handle_failure(self, key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        """Make the next request due after a backoff, and pass the error to the sender."""
        self._next_attempt_ms = now_ms + self._compute_backoff_ms(self._failure_count)
        self._failure_count += 1
        self._on_failure(error, now_ms)
