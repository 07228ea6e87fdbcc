"""ProducerIdCall: gets the producer id that idempotence needs, for a producer without a transactional id."""

from __future__ import annotations

from collections.abc import Callable

from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError, KafkaSinkError
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdResponse
from spark_kafka_sink.requests.init_producer_id import InitProducerId, producer_id_and_epoch
from spark_kafka_sink.requests.pending import Call
from spark_kafka_sink.requests.request import Request
from spark_kafka_sink.requests.verdicts import Verdict


class ProducerIdCall(Call[InitProducerIdResponse]):
    """A call without an end: a request is due while an id is needed, after a pause if the last one was rejected.

    `is_needed`: whether records wait for an id. `adopt` takes the id, and `rejected` the error and its time.
    """

    def __init__(
        self,
        is_needed: Callable[[], bool],
        adopt: Callable[[ProducerIdAndEpoch], None],
        rejected: Callable[[KafkaSinkError, float], None],
        pause_ms: Callable[[int], float],
    ) -> None:
        super().__init__([InitProducerId(None)])
        self._is_needed = is_needed
        self._adopt = adopt
        self._rejected = rejected
        self._pause_ms = pause_ms
        (self._key,) = self.due
        self._due_ms = 0.0
        self._rejections = 0

    def refresh(self, now: float) -> None:
        if not self.in_flight:
            self._due_ms = self.due.get(self._key, self._due_ms)
            self.due = {self._key: self._due_ms} if self._is_needed() else {}

    def done(
        self, request: Request[InitProducerIdResponse], key: str, response: InitProducerIdResponse, now: float
    ) -> None:
        classification = request.classify(response)
        id_and_epoch = producer_id_and_epoch(response)
        if classification.verdict is not Verdict.DONE:
            self.failed(key, request.rejection(key, classification), classification.verdict, now)
        elif min(id_and_epoch) < 0:
            producer_id, epoch = id_and_epoch
            text = f"a broker returned the producer id {producer_id} with the epoch {epoch}: neither can be negative"
            self.failed(key, DecodeError(text), Verdict.FATAL, now)
        else:
            self._rejections = 0
            self._adopt(id_and_epoch)

    def failed(self, key: str, error: KafkaSinkError, verdict: Verdict, now: float) -> None:
        self._due_ms = now + self._pause_ms(self._rejections)
        self._rejections += 1
        self._rejected(error, now)
