"""ProducerIdRequest: asks a broker for a producer id (InitProducerId) when idempotence needs one.

One request at a time, and after a failure that may pass another one after a pause that grows. Sender thread only.
"""

from __future__ import annotations

from random import Random

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.requests import ClientResponse
from spark_kafka_sink.errors import DecodeError, KafkaSinkError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.sending.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import broker_error, error_code
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_REQUEST = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
"""Without a transactional id there is no transaction that a timeout could end."""
_LOOK_AGAIN_MS_MIN = 10.0
"""A retry.backoff.ms of 0 must not spin."""


class ProducerIdRequest:
    def __init__(self, config: ProducerConfig, client: NetworkClient, idempotence: Idempotence, random: Random) -> None:
        self._config = config
        self._client = client
        self._idempotence = idempotence
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms, random)
        self._asked = False
        self._failures = 0
        self._retry_ms = 0.0

    @property
    def due(self) -> bool:
        return not self._asked and self._idempotence.needs_producer_id

    def ask(self, now: float) -> float:
        """Ask, if somebody can be asked. Returns how long until this must be looked at again."""
        if now < self._retry_ms:
            return self._retry_ms - now
        node = self._client.least_loaded_node(now)
        if node is None or not self._client.ready(node, now):
            return max(_LOOK_AGAIN_MS_MIN, self._config.retry_backoff_ms)
        self._asked = True
        request = self._client.new_client_request(node.id, _REQUEST, now)
        self._client.send(request, now)
        return float("inf")

    def answered(self, response: ClientResponse) -> KafkaSinkError | None:
        """Returns the error with which the producer cannot go on."""
        self._asked = False
        message = response.message
        if response.version_error is not None:
            return response.version_error
        if isinstance(message, InitProducerIdResponse):
            if message.error_code == codes.NONE:
                if message.producer_id < 0 or message.producer_epoch < 0:
                    return DecodeError(
                        f"a broker gave the producer id {message.producer_id} with the epoch {message.producer_epoch}: "
                        "neither can be negative"
                    )
                self._failures = 0
                self._idempotence.adopt(ProducerIdAndEpoch(message.producer_id, message.producer_epoch))
                return None
            if not error_code(message.error_code).retriable:
                return broker_error(message.error_code, "A producer id was asked for, which idempotence needs")
        self._retry_ms = response.received_ms + self._backoff.after(self._failures)
        self._failures += 1
        return None
