"""Transaction administration: describes, lists and ends the transactions of any producer, and requests producer ids.

A request is retried while its coordinator is unknown, moving, starting, or still completing the previous transaction.
It fails when the client's timeout passes without progress.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.client.producer_ids import NO_PRODUCER_ID, ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError, NetworkError
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages.list_transactions import (
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.deadline import compute_pause_ms
from spark_kafka_sink.requests.engine import Call
from spark_kafka_sink.requests.init_producer_id import InitProducerId, parse_producer_id_and_epoch
from spark_kafka_sink.requests.request import Request
from spark_kafka_sink.requests.transaction_description import TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.requests.transactions import (
    DescribeTransactions,
    EndTransaction,
    ListTransactions,
    collect_descriptions,
)
from spark_kafka_sink.requests.verdicts import is_worth_retrying

ResponseT = TypeVar("ResponseT", bound=Message)


def init_producer_id(
    client: BlockingClient,
    transactional_id: str,
    timeout_ms: int,
    current_id_and_epoch: ProducerIdAndEpoch = NO_PRODUCER_ID,
) -> ProducerIdAndEpoch:
    """Fence all producers with this transactional id, abort their transaction, and return the new id and epoch.

    Raise BrokerError if the request is rejected, and DecodeError if the new id or epoch is negative.

    `current_id_and_epoch`: the producer id and epoch that the caller believes to be current. If they are given, the
    broker rejects the request if another producer has taken over.
    """
    request = InitProducerId(transactional_id, timeout_ms, current_id_and_epoch)
    response = client.send(request)
    if response.error_code != error_codes.NONE:
        raise request.build_rejection_error(transactional_id, request.classify(response))
    return parse_producer_id_and_epoch(response)


def end_transactions(
    client: BlockingClient,
    transactions: Iterable[TransactionIdentity],
    *,
    commit: bool,
    timeout_ms: float | None = None,
) -> dict[str, BrokerError]:
    """Commit or abort transactions. Return the errors of the rejected requests by transactional id.

    Committing a committed transaction again, or aborting an aborted one, is not rejected unless a newer transaction has
    begun under the same id. Transactions with a newer epoch are not affected.
    """
    requests = [EndTransaction(transaction, commit) for transaction in transactions]
    return collect_rejection_errors(requests, client.send_all(requests, timeout_ms))


def collect_rejection_errors(
    requests: Iterable[Request[ResponseT]], responses: dict[str, ResponseT]
) -> dict[str, BrokerError]:
    """Return the errors of the rejected requests by key. Each request must have exactly one key."""
    errors = {}
    for request in requests:
        (key,) = request.keys
        classification = request.classify(responses[key])
        if classification.code != error_codes.NONE:
            errors[key] = request.build_rejection_error(key, classification)
    return errors


def describe_transactions(
    client: BlockingClient,
    transactional_ids: Iterable[str],
    timeout_ms: float | None = None,
    *,
    wait_while_ending: bool = False,
) -> dict[str, TransactionDescription]:
    """Return the descriptions of these ids. Ids that their coordinators do not know are omitted.

    Each coordinator gets a single request for all of its ids. Raise BrokerError if the user is not allowed to describe
    an id.

    `wait_while_ending`: whether to wait while a coordinator is committing or aborting a transaction. Open transactions
    are returned without waiting.
    """
    request = DescribeTransactions(tuple(transactional_ids), wait_while_ending)
    return collect_descriptions(request, client.send_all([request], timeout_ms))


class TransactionListing:
    """Lists the transactions on all brokers of the cluster. `states`: the states to list; empty for all states."""

    def __init__(self, client: BlockingClient, *states: str) -> None:
        """Send requests to the brokers that are known already, without waiting for the responses.

        Also request a metadata update. `wait_for_transactions` then queries the brokers that only the update contains.
        """
        self._client = client
        self._states = states
        self._requests: dict[Node, ListTransactions] = {}
        self._calls: list[Call[ListTransactionsResponse]] = []
        snapshot = client.metadata.snapshot
        # Bootstrap servers are not queried, because each of them would be queried again under its broker id.
        self._send_to_new_nodes(() if snapshot.is_bootstrap else snapshot.nodes.values())
        self._last_metadata_version: int | None = client.metadata.request_update(reset_backoff=True)
        """The metadata version when an update was last requested; None if the next round must request an update."""

    def _send_to_new_nodes(self, nodes: Iterable[Node]) -> None:
        """Send a request to each node to which none has been sent yet."""
        requests = {node: ListTransactions(node, self._states) for node in nodes if node not in self._requests}
        self._requests |= requests
        self._calls.append(self._client.begin(requests.values(), should_retry=False))

    def wait_for_transactions(self) -> list[ListTransactionsResponseTransactionState]:
        """Wait for the responses of all current brokers, and return the transactions that they list.

        Brokers that have joined since the first requests are queried, too, because they may have taken over
        transactional ids from another broker. If a request to a broker fails, all brokers are queried again, because
        that broker's transactional ids may have moved to one that has already responded.
        """
        deadline = self._client.create_deadline("the list of transactions")
        failure_count = 0
        while True:
            self._send_to_new_nodes(self._client.fetch_nodes(self._last_metadata_version))
            try:
                return self._wait_for_responses()
            except (NetworkError, BrokerError) as error:
                if isinstance(error, BrokerError) and not is_worth_retrying(error.code):
                    raise
                deadline.wait_or_raise(error, compute_pause_ms(failure_count))
            failure_count += 1
            self._reset_requests()

    def _reset_requests(self) -> None:
        """Forget all requests, so that the next round updates the metadata and queries every broker."""
        self._requests = {}
        self._calls = []
        self._last_metadata_version = None

    def _wait_for_responses(self) -> list[ListTransactionsResponseTransactionState]:
        """Wait for all responses, and return the transactions in them. Raise an error if any broker failed."""
        try:
            responses = {key: response for call in self._calls for key, response in self._client.finish(call).items()}
        finally:
            for call in self._calls:
                self._client.abandon(call)
        rejections = collect_rejection_errors(self._requests.values(), responses)
        if rejections:
            raise next(iter(rejections.values()))
        return [transaction for response in responses.values() for transaction in response.transaction_states]


def list_transactions(client: BlockingClient, *states: str) -> list[ListTransactionsResponseTransactionState]:
    """Return the transactions in these states, or in all states if `states` is empty."""
    return TransactionListing(client, *states).wait_for_transactions()


def fetch_ids_by_producer(client: BlockingClient) -> dict[int, str]:
    """Return all transactional ids that the user may describe, by producer id."""
    return {transaction.producer_id: transaction.transactional_id for transaction in list_transactions(client)}


def list_transactional_ids(client: BlockingClient, *states: str) -> list[str]:
    """Return the sorted transactional ids in these states, or in all states if `states` is empty."""
    return sorted({transaction.transactional_id for transaction in list_transactions(client, *states)})
