"""InitProducerId: obtains a producer id and epoch, with or without a transactional id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_kafka_sink.client.option_parsing import INT_MAX
from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.errors import DecodeError
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.end_txn import EndTxnResponse
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.request import TRANSACTION_KEY_TYPE, CoordinatorRoute, Role, Route
from spark_kafka_sink.requests.transaction_request import TransactionListener, TransactionRequest
from spark_kafka_sink.requests.verdicts import COORDINATOR_VERDICTS, Classification, Verdict

MIN_VERSION_WITH_CURRENT_EPOCH = 3
"""The first version of InitProducerId in which a producer can send its current id and epoch (KIP-360)."""
_MAX_SUPPORTED_VERSION = 5
"""Version 6 is for two-phase commit (KIP-939), which no released broker supports."""


@dataclass(frozen=True, eq=False)
class InitProducerId(TransactionRequest[InitProducerIdResponse]):
    """Obtain a producer id and epoch.

    With a transactional id, the broker also fences earlier producers with this id, and aborts any transaction that they
    left open.

    `timeout_ms`: the transaction timeout, which has no effect without a transactional id.
    `current_id_and_epoch`: if set, the producer gets its next epoch, and the broker rejects the request if another
    producer has taken over.
    """

    api_key = ApiKey.INIT_PRODUCER_ID
    action = "get a producer id"
    completes_abort = True  # after some aborts, the producer needs a new epoch before it can continue
    verdicts = COORDINATOR_VERDICTS | {
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.UNAUTHORIZED,
        codes.CLUSTER_AUTHORIZATION_FAILED: Verdict.UNAUTHORIZED,
        codes.UNKNOWN_PRODUCER_ID: Verdict.FATAL,
    }
    transactional_id: str | None
    timeout_ms: int = INT_MAX
    current_id_and_epoch: ProducerIdAndEpoch = NO_PRODUCER_ID

    @property
    def coordinator(self) -> CoordinatorRoute:
        return CoordinatorRoute(TRANSACTION_KEY_TYPE, self.transactional_id or "")

    @property
    def keys(self) -> Sequence[str]:
        """The transactional id, which is the only key. An idempotent producer has none, so its key is empty."""
        return (self.transactional_id or "",)

    def route(self, key: str) -> Route:
        return Role.ANY_BROKER if self.transactional_id is None else self.coordinator

    @property
    def versions(self) -> VersionRange:
        return VersionRange(
            0 if self.current_id_and_epoch == NO_PRODUCER_ID else MIN_VERSION_WITH_CURRENT_EPOCH, _MAX_SUPPORTED_VERSION
        )

    def build_message(self, version: int) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.current_id_and_epoch.producer_id,
            producer_epoch=self.current_id_and_epoch.epoch,
        )

    def classify(self, response: InitProducerIdResponse) -> Classification:
        return self.classify_code(response.error_code)

    def on_executed(self, response: InitProducerIdResponse, listener: TransactionListener) -> None:
        listener.on_initialized(parse_producer_id_and_epoch(response))

    def describe_subject(self, key: str) -> str:
        return "idempotence" if self.transactional_id is None else super().describe_subject(key)


def parse_producer_id_and_epoch(response: InitProducerIdResponse | EndTxnResponse) -> ProducerIdAndEpoch:
    """Return the producer id and epoch in a response without an error code.

    EndTxn responses contain them in version 2 of transactions.

    Raise DecodeError if one of them is negative. In a batch, -1 would mean that the producer is not idempotent.
    """
    id_and_epoch = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
    if id_and_epoch.producer_id < 0 or id_and_epoch.epoch < 0:
        raise DecodeError(
            f"A broker returned the producer id {id_and_epoch.producer_id} with the epoch {id_and_epoch.epoch}: "
            "neither may be negative."
        )
    return id_and_epoch
