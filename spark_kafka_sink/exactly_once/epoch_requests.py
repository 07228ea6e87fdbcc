"""Epoch requests for a query's driver, and a search for the longest transaction timeout that brokers grant.

A driver acts under its own transactional id, the driver id (transaction_names.py). Brokers count the epochs of the id,
and accept requests only under the newest one. So a granted epoch fences every older driver of the same query. A request
for an epoch also sets the driver id's transaction timeout.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.client.producer_ids import UNUSED_IDENTITY, ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError
from spark_kafka_sink.exactly_once import precommit_errors
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.init_producer_id import InitProducerId
from spark_kafka_sink.requests.transaction_admin import init_producer_id
from spark_kafka_sink.requests.verdicts import OWNERSHIP_LOST_ERRORS


def request_epoch(
    client: BlockingClient, driver_id: str, expected_identity: ProducerIdAndEpoch, timeout_ms: int
) -> ProducerIdAndEpoch:
    """Request the next epoch of the driver id, and set its transaction timeout.

    Raise ProducerFencedError if the driver id no longer has `expected_identity`, because another process has since been
    granted an epoch. Raise PreflightError if the brokers grant no first epoch, and BrokerError if they reject the
    request for another reason.

    `expected_identity`: the producer id and epoch that the caller believes to be the newest ones.
    """
    try:
        return init_producer_id(client, driver_id, timeout_ms, expected_identity)
    except BrokerError as error:
        # Kafka grants the first epoch whatever identity the request expects. Some other brokers do not.
        if expected_identity == UNUSED_IDENTITY and error.code == error_codes.INVALID_PRODUCER_ID_MAPPING:
            raise precommit_errors.build_first_epoch_rejected_error(error) from error
        if error.code == error_codes.INVALID_TRANSACTION_TIMEOUT:
            raise precommit_errors.build_driver_timeout_error(driver_id, timeout_ms) from error
        raise


def find_longest_timeout_ms(client: BlockingClient, driver_id: str, candidate_timeouts_ms: Sequence[int]) -> int:
    """Return the first of these transaction timeouts that the brokers grant. Raise BrokerError if they grant none.

    The epoch and timeout of the driver id are not changed, unless it has no epoch yet or the brokers have forgotten it.

    `driver_id`: the driver id, which the brokers must know.
    `candidate_timeouts_ms`: the timeouts, longest first.
    """
    # Brokers check the timeout of InitProducerId before they check the expected producer id. The one in these requests
    # belongs to no producer, so a request whose timeout is granted is rejected because of its producer id.
    for timeout_ms in candidate_timeouts_ms:
        request = InitProducerId(driver_id, timeout_ms, UNUSED_IDENTITY)
        response = client.send(request)
        # The code is NONE only if the id has no epoch yet, or the brokers have forgotten the id. The request has then
        # given it its first epoch. This is harmless: the caller is then rejected, or finds the change and retries.
        if response.error_code == error_codes.NONE or response.error_code in OWNERSHIP_LOST_ERRORS:
            return timeout_ms
        if response.error_code != error_codes.INVALID_TRANSACTION_TIMEOUT:
            raise request.build_rejection_error(driver_id, request.classify(response))
    raise precommit_errors.build_timeout_limit_error(driver_id, candidate_timeouts_ms[-1])
