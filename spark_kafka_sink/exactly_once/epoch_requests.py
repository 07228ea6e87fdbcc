"""Requests the next epoch for a query's driver. A granted epoch fences every older driver of the same query.

A driver acts under its own transactional id, the driver id (transaction_names.py). Brokers count the epochs of the id,
and accept requests only under the newest one. A request for an epoch also sets the driver id's transaction timeout.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.client.producer_ids import UNUSED_IDENTITY, ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.exactly_once.driver_ids import GrantedEpoch
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import init_producer_id


def request_epoch(
    client: BlockingClient,
    driver_id: str,
    expected_identity: ProducerIdAndEpoch,
    candidate_timeouts_ms: Sequence[int],
) -> GrantedEpoch:
    """Request the next epoch with each transaction timeout in turn, until the brokers grant one.

    Raise ProducerFencedError if the driver id no longer has `expected_identity`, because another process has since been
    granted an epoch. Raise BrokerError if the brokers grant none of the timeouts, or reject the request for another
    reason.

    `expected_identity`: the producer id and epoch that the caller believes to be the newest ones.
    `candidate_timeouts_ms`: the timeouts, longest first.
    """
    *longer_timeouts_ms, last_timeout_ms = candidate_timeouts_ms
    for timeout_ms in longer_timeouts_ms:
        identity = _try_init_producer_id(client, driver_id, timeout_ms, expected_identity)
        if identity is not None:
            return GrantedEpoch(identity, timeout_ms)
    return GrantedEpoch(_init_producer_id(client, driver_id, last_timeout_ms, expected_identity), last_timeout_ms)


def _try_init_producer_id(
    client: BlockingClient, driver_id: str, timeout_ms: int, expected_identity: ProducerIdAndEpoch
) -> ProducerIdAndEpoch | None:
    """Request the next epoch with this timeout. Return None if the brokers grant only shorter timeouts."""
    try:
        return _init_producer_id(client, driver_id, timeout_ms, expected_identity)
    except BrokerError as error:
        if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
            return None
        raise


def _init_producer_id(
    client: BlockingClient, driver_id: str, timeout_ms: int, expected_identity: ProducerIdAndEpoch
) -> ProducerIdAndEpoch:
    """Request the next epoch with this timeout. Raise PreflightError if the brokers grant no first epoch."""
    try:
        return init_producer_id(client, driver_id, timeout_ms, expected_identity)
    except BrokerError as error:
        # Kafka grants the first epoch whatever identity the request expects. Some other brokers do not.
        if expected_identity == UNUSED_IDENTITY and error.code == error_codes.INVALID_PRODUCER_ID_MAPPING:
            raise precommit_errors.build_first_epoch_rejected_error(error) from error
        raise
