"""Sender: the one thread that carries batches from the accumulator to the brokers, and outcomes back to the calls.

`run_once` is a table of contents: what has lingered is encoded, what cannot be sent fails, what can be sent is sent,
and what has come in is taken. Batches expire before others are drained, so that none leaves that has failed already.

Nothing that the brokers or a user's callbacks do can stop the loop. A fault of our own ends it, and fails everything
that waits.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from spark_kafka_sink.client.client_request import ClientResponse
from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.diagnostics.text import format_count
from spark_kafka_sink.errors import AuthorizationError, DeliveryError, KafkaSinkError, ProducerClosedError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sending.cluster_requests import ClusterRequests
from spark_kafka_sink.producer.sending.deliveries import Deliveries
from spark_kafka_sink.producer.sending.delivery_errors import (
    abandoned_error,
    encoding_error,
    timeout_error,
    why_not_stored,
)
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.sending.produce_exchange import SentBatches, produce_request
from spark_kafka_sink.producer.sending.producer_id_call import ProducerIdCall

if TYPE_CHECKING:  # loaded for producers with a transactional.id only
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

_log = logging.getLogger(__name__)

_POLL_MS_MAX = 3_600_000.0


class Sender:
    """Sender thread only, except initiate_close, abandon, interrupted and fatal_error. Each part that it is given says
    itself which threads may use it."""

    def __init__(  # noqa: PLR0913 - what it drives, each made and shared by the producer
        self,
        config: ProducerConfig,
        client: NetworkClient,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        metrics: ProducerMetrics,
        requests: ClusterRequests,
        *,
        system: System,
        transactions: TransactionManager | None = None,
    ) -> None:
        self.config = config
        self.client = client
        self.metadata = metadata
        self.accumulator = accumulator
        self._metrics = metrics
        self._system = system
        self.idempotence = Idempotence(
            enabled=config.enable_idempotence,
            in_flight_max=config.max_in_flight_requests_per_connection,
            connection_of=client.versions,  # made anew for each connection
            transactions=transactions,
        )
        self._transactions = transactions
        self._requests = requests
        self._deliveries = Deliveries(config, accumulator, self.idempotence, metadata, metrics, transactions)
        self._add_calls()
        self._closing = False
        self._forced = False
        self._abandoned = False
        self.fatal_error: KafkaSinkError | None = None

    # --- life

    def initiate_close(self, *, force: bool) -> None:
        """From any thread: end when every batch is acknowledged or has failed, or at once.

        A signal handler may call this while its thread holds any lock of ours, so it sets flags and wakes the sender.
        """
        self._forced = self._forced or force
        self._closing = True
        self.client.wakeup()

    def interrupted(self, call: str, by: BaseException) -> None:
        """A call of a user was interrupted in the middle of appending: what it has left is not known. From any thread.

        All that has not left fails, and a close waits for no answer.
        """
        error = DeliveryError(
            f"{call} was interrupted by {type(by).__name__} while it appended, so this producer cannot go on. Make a "
            "new KafkaProducer, and send again what has failed."
        )
        self._forced = True
        self.fatal_error = self.fatal_error or error
        if self._transactions is not None:
            self._transactions.fail_for_good(error)
        self.client.wakeup()

    def abandon(self, *, force: bool = False) -> None:
        """End without close(), because the producer was dropped or the program ends: what was accepted is delivered, or
        fails after delivery.timeout.ms. An open transaction is not: no call can commit it any more.

        The garbage collector calls this in any thread and between any two steps of it: that thread may hold any lock
        of ours. So this sets flags and wakes, and nothing else.
        """
        self._abandoned = True
        self.initiate_close(force=force or self._transactions is not None)

    def run(self) -> None:
        """The sender thread: work until close() was called and every batch is acknowledged or has failed."""
        try:
            while not self.finished:
                self.run_once(self._system.now())
        except BaseException as error:  # whatever it is: without this thread, records would wait for ever
            self.fatal_error = DeliveryError(f"The producer's sender has failed: {error!r}")
            self.fatal_error.__cause__ = error
            _log.exception("The sender has failed; nothing more will be sent.")
            if self._transactions is not None:
                self._transactions.fail_for_good(self.fatal_error)
        finally:
            self.shut_down()

    @property
    def finished(self) -> bool:
        return self._closing and (self._forced or not self.has_incomplete)

    @property
    def has_incomplete(self) -> bool:
        """Are there records without an outcome?"""
        return self.accumulator.has_incomplete()

    def shut_down(self) -> None:
        """Fail what is left and close the connections. All memory is back then, unless an append was interrupted."""
        error = self.fatal_error or ProducerClosedError(
            "The producer was closed before these records were acknowledged."
        )
        self.accumulator.close()
        self._deliveries.unwatched = self._abandoned
        now = self._system.now()
        self._requests.fail(error)
        if self._transactions is not None:
            self._transactions.close(error)
        self._deliveries.fail_unreported(error)
        self._deliveries.fail_all(self.accumulator.abort_incomplete_batches(error), error, now)
        self._fail_what_was_not_encoded(now)
        self.client.close()
        for state in self.idempotence:
            for batch in list(state.on_wire):
                batch.mark_request_ended()
            state.on_wire.clear()
        self.accumulator.complete_flushes()
        if (loss := self._deliveries.loss) is not None:
            _log.warning(
                "KafkaProducer %s was dropped without close(), or its program ended: no acknowledgement for %s. %s",
                self.config.client_id,
                format_count(loss.records, "record"),
                loss.first_error,
            )

    # --- the loop

    def run_once(self, now: float) -> None:
        snapshot = self.metadata.snapshot
        if self._closing:
            self.accumulator.close()
            self._deliveries.unwatched = self._abandoned
        self._fail_all_after_a_fatal_error(now)
        self._fail_what_leaves_a_transaction(now)
        ready = self.accumulator.ready(snapshot, now)
        self._fail_what_was_not_encoded(now)
        self._expire(now)
        self._fail_what_was_abandoned(now)
        self._ask_for_leaders(ready.unknown_leader_topics, now)
        node_ids, delay_ms = self._nodes_to_send_to(snapshot, ready.ready_node_ids, now)
        size_max, admit = self.config.max_request_size, self.idempotence.admit
        drained = self.accumulator.drain(snapshot, node_ids, size_max, now, admit)
        for node_id, batches in drained.items():
            self._send(node_id, batches, snapshot, now)
        wait_ms = self._send_requests(now)
        expiry_ms = self.accumulator.next_expiry_ms() - now
        timeout_ms = min(wait_ms, delay_ms, ready.next_ready_check_delay_ms, expiry_ms, _POLL_MS_MAX)
        responses = self.client.poll(max(0.0, timeout_ms), now)
        try:
            for response in responses:
                self._answered(response)
        finally:  # what is stored is reported, whatever becomes of the others
            self._deliveries.report_stored()

    # --- its parts

    def _fail_all_after_a_fatal_error(self, now: float) -> None:
        error = self.fatal_error
        if error is None:
            try:
                self.metadata.raise_if_fatal()
            except KafkaSinkError as error_of_metadata:
                error = error_of_metadata.with_traceback(None)
                if self._transactions is not None:
                    self._transactions.fail_for_good(error)
        if error is not None:
            self._requests.fail(error)
            self._fail_what_has_not_left(error, now)

    def _fail_what_has_not_left(self, error: KafkaSinkError, now: float) -> None:
        self._deliveries.fail_all(self.accumulator.abort_incomplete_batches(error, include_in_flight=False), error, now)

    def _fail_what_leaves_a_transaction(self, now: float) -> None:
        """Records that have not left when their transaction is aborted, or can only be aborted."""
        if self._transactions is not None and self._transactions.drops_unsent:
            from spark_kafka_sink.producer.transactions.failures import not_sent_error  # not for other producers

            self._fail_what_has_not_left(not_sent_error(self._transactions), now)

    def _fail_what_was_not_encoded(self, now: float) -> None:
        for batch in self.accumulator.take_failed_batches():
            self._deliveries.fail_all([batch], encoding_error(batch), now)

    def _add_calls(self) -> None:
        if self._transactions is None:
            self._requests.add(
                ProducerIdCall(
                    lambda: self.idempotence.needs_producer_id and self.accumulator.has_undrained(),
                    self._adopt_producer_id,
                    self._no_producer_id,
                    self._requests.pause_ms,
                )
            )
            return
        from spark_kafka_sink.producer.transactions.transaction_call import TransactionCall  # not for other producers

        self._requests.add(TransactionCall(self._transactions, self._is_quiet, self._adopt))

    def _adopt_producer_id(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        self.idempotence.adopt(id_and_epoch)
        self.accumulator.unmute()

    def _no_producer_id(self, error: KafkaSinkError, now: float) -> None:
        """Fail the records that wait for a producer id. A missing right may be granted, so later records try again."""
        self.accumulator.unmute()
        self._fail_what_has_not_left(error, now)
        if not isinstance(error, AuthorizationError):
            self._end_by(error)

    def _adopt(self) -> None:
        """A new epoch may have begun, and what had to wait may leave."""
        manager = self._transactions
        if manager is not None and manager.id_and_epoch != self.idempotence.id_and_epoch:
            self.idempotence.adopt(manager.id_and_epoch)
        self.accumulator.unmute()

    def _is_quiet(self) -> bool:
        """Nothing is on its way into the transaction, not even what has failed for its caller."""
        if self.accumulator.has_incomplete():
            return False
        return not any(state.on_wire for state in self.idempotence)

    def _send_requests(self, now: float) -> float:
        """Send what is due of transactions, producer ids and descriptions."""
        if self.fatal_error is not None:
            return _POLL_MS_MAX
        wait_ms = self._requests.send_due(now)
        self._end_by(self._fatal_error_of_transactions())
        return 0.0 if self.fatal_error is not None else wait_ms

    def _fatal_error_of_transactions(self) -> KafkaSinkError | None:
        manager = self._transactions
        return None if manager is None else manager.fatal_error

    def _ask_for_leaders(self, topics: Collection[str], now: float) -> None:
        for topic in topics:
            self.metadata.add_topic(topic, now)
        if topics:
            self.metadata.request_update()

    def _nodes_to_send_to(self, snapshot: ClusterSnapshot, ready: Iterable[int], now: float) -> tuple[list[int], float]:
        """The ready nodes that can take a request now, and how long until one of the others might."""
        node_ids: list[int] = []
        delay_ms = _POLL_MS_MAX
        for node_id in ready:
            can_send = self.client.ready(snapshot.nodes[node_id], now)
            self.accumulator.update_node_latency_stats(node_id, now, can_drain=can_send)
            if can_send:
                node_ids.append(node_id)
            else:
                delay_ms = min(delay_ms, self.client.poll_delay(node_id, now) or _POLL_MS_MAX)
        return node_ids, delay_ms

    def _expire(self, now: float) -> None:
        for batch in self.accumulator.expired_batches(now):
            in_doubt = self._deliveries.may_be_stored(batch)
            why = why_not_stored(batch, self.metadata, self.client)
            self._deliveries.fail(batch, timeout_error(batch, why, in_doubt=in_doubt), now, in_doubt=in_doubt)
            self.metadata.request_update()

    def _fail_what_was_abandoned(self, now: float) -> None:
        for batch in self.idempotence.take_abandoned():
            if not batch.is_done:
                self.accumulator.remove_from_queue(batch)
                self._deliveries.fail(batch, abandoned_error(batch, batch.error), now, in_doubt=True)

    def _send(self, node_id: int, batches: list[ProducerBatch], snapshot: ClusterSnapshot, now: float) -> None:
        transaction = None if self._transactions is None else self._transactions.in_use
        message, sent, versions = produce_request(batches, snapshot, self.config, transaction)
        expect_response = self.config.acks != 0
        request = self.client.new_client_request(
            node_id, message, now, expect_response=expect_response, tag=sent, versions=versions
        )
        self.client.send(request, now)
        message.topic_data.clear()  # it is encoded: else the garbage collector would look at it until the answer
        self._metrics.request_sent(sent.batches, now)

    def _answered(self, response: ClientResponse) -> None:
        """Handle a request that has ended, with an answer or without."""
        sent = response.request.tag
        if isinstance(sent, SentBatches):
            fatal = self._deliveries.answered(response, sent)
            if fatal is not None and self._transactions is not None:
                self._transactions.fail_for_good(fatal)
        else:
            self._requests.responded(response)
            fatal = self._fatal_error_of_transactions()
        self._end_by(fatal)

    def _end_by(self, fatal: KafkaSinkError | None) -> None:
        """Keep the first error that ends the producer; another thread may have set one (`interrupted`)."""
        self.fatal_error = self.fatal_error or fatal
        if self.fatal_error is not None:
            self._requests.fail(self.fatal_error)
