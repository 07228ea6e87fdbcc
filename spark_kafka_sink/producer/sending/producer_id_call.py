"""ProducerIdCall: requests the producer id that idempotence needs, for producers without a transactional.id."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError, KafkaSinkError
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.requests.init_producer_id import InitProducerId, parse_producer_id_and_epoch
from spark_kafka_sink.requests.pending import Call
from spark_kafka_sink.requests.request import Request
from spark_kafka_sink.requests.verdicts import Verdict


class ProducerIdCall(Call[InitProducerIdResponse]):
    """A call that never ends: an InitProducerId request is due whenever an id is needed.

    After a failure, the next request is due after a backoff.
    """

    def __init__(
        self,
        is_needed: Callable[[], bool],
        set_producer_id_and_epoch: Callable[[ProducerIdAndEpoch], None],
        on_failure: Callable[[KafkaSinkError, float], None],
        retry_backoff_ms: Callable[[int], float],
    ) -> None:
        """`is_needed`: returns whether any records are waiting for a producer id.

        `on_failure`: called with the error of a failed request and the time.
        `retry_backoff_ms`: returns the backoff after a given number of earlier consecutive failures.
        """
        super().__init__([InitProducerId(None)])
        self._is_needed = is_needed
        self._set_producer_id_and_epoch = set_producer_id_and_epoch
        self._on_failure = on_failure
        self._retry_backoff_ms = retry_backoff_ms
        (self._key,) = self.due_ms_by_key
        self._due_ms = 0.0
        self._failure_count = 0

    def refresh(self, now_ms: float) -> None:
        if not self.in_flight_keys:
            self._due_ms = self.due_ms_by_key.get(self._key, self._due_ms)
            self.due_ms_by_key = {self._key: self._due_ms} if self._is_needed() else {}

    def handle_result(
        self, request: Request[InitProducerIdResponse], key: str, response: InitProducerIdResponse, now_ms: float
    ) -> None:
        classification = request.classify(response)
        id_and_epoch = parse_producer_id_and_epoch(response)
        if classification.verdict is not Verdict.DONE:
            self.handle_failure(key, request.build_rejection_error(key, classification), classification.verdict, now_ms)
        elif min(id_and_epoch) < 0:
            producer_id, epoch = id_and_epoch
            message = (
                f"A broker returned the producer id {producer_id} with the epoch {epoch}: neither can be negative."
            )
            self.handle_failure(key, DecodeError(message), Verdict.FATAL, now_ms)
        else:
            self._failure_count = 0
            self._set_producer_id_and_epoch(id_and_epoch)

    def handle_failure(self, key: str, error: KafkaSinkError, verdict: Verdict, now_ms: float) -> None:
        self._due_ms = now_ms + self._retry_backoff_ms(self._failure_count)
        self._failure_count += 1
        self._on_failure(error, now_ms)
