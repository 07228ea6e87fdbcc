"""ProducerIdRequest: asks a broker for a producer id (InitProducerId) when idempotence needs one.

One request at a time, and after a failure that may pass another one after a pause that grows. Sender thread only.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from spark_kafka_sink.client.backoff import ExponentialBackoff
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.request import ClientResponse
from spark_kafka_sink.errors import AuthorizationError, DecodeError, KafkaSinkError
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.error_codes import broker_error, error_code
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_REQUEST = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
"""Without a transactional id there is no transaction that a timeout could end."""
_LOOK_AGAIN_MS_MIN = 10.0
"""A retry.backoff.ms of 0 must not spin."""


class Refusal(NamedTuple):
    """No producer id can be had: the records that wait for one must fail."""

    error: KafkaSinkError
    final: bool
    """Later records get none either. A missing right is not final: it may be granted, so later records try again."""


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
        """Ask, if a broker can be asked. Returns how long until this must be looked at again."""
        if now < self._retry_ms:
            return self._retry_ms - now
        node = self._client.least_loaded_node(now)
        if node is None or not self._client.ready(node, now):
            return max(_LOOK_AGAIN_MS_MIN, self._config.retry_backoff_ms)
        self._asked = True
        request = self._client.new_client_request(node.id, _REQUEST, now)
        self._client.send(request, now)
        return float("inf")

    def answered(self, response: ClientResponse) -> Refusal | None:
        self._asked = False
        message = response.message
        if response.version_error is not None:
            return Refusal(response.version_error, final=True)
        if isinstance(message, InitProducerIdResponse) and message.error_code == codes.NONE:
            return self._received(ProducerIdAndEpoch(message.producer_id, message.producer_epoch))
        self._retry_ms = response.received_ms + self._backoff.after(self._failures)
        self._failures += 1
        if not isinstance(message, InitProducerIdResponse) or error_code(message.error_code).retriable:
            return None
        error = broker_error(message.error_code, "A producer id was asked for, which idempotence needs")
        return Refusal(error, final=not isinstance(error, AuthorizationError))

    def _received(self, id_and_epoch: ProducerIdAndEpoch) -> Refusal | None:
        if min(id_and_epoch) < 0:
            producer_id, epoch = id_and_epoch
            words = f"a broker gave the producer id {producer_id} with the epoch {epoch}: neither can be negative"
            return Refusal(DecodeError(words), final=True)
        self._failures = 0
        self._idempotence.adopt(id_and_epoch)
        return None
