"""Sender: sends the accumulator's batches to the brokers and completes the futures of their records, on one thread.

Each round of the loop (`run_once`) encodes rows that have lingered, fails batches that cannot be sent, sends batches
that are ready, and handles responses. Expired batches fail before the accumulator is drained, so that none of them is
sent.

Nothing that brokers or user callbacks do can break the loop. An unexpected exception in the sender itself ends the loop
and fails all incomplete batches (`run`).
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
from spark_kafka_sink.errors import (
    AuthorizationError,
    DeliveryError,
    KafkaSinkError,
    ProducerClosedError,
    clear_tracebacks,
)
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sending.call_executor import CallExecutor
from spark_kafka_sink.producer.sending.deliveries import Deliveries
from spark_kafka_sink.producer.sending.delivery_errors import (
    build_abandoned_error,
    build_encoding_error,
    build_timeout_error,
    find_timeout_cause,
)
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.sending.produce_exchange import SentBatches, build_produce_request
from spark_kafka_sink.producer.sending.producer_id_call import ProducerIdCall

if TYPE_CHECKING:  # only loaded for producers with a transactional.id
    from spark_kafka_sink.producer.transactions.manager import TransactionManager

_log = logging.getLogger(__name__)

_MAX_POLL_MS = 3_600_000.0
"""Duration of a poll if there is no deadline or due time at which it must end. Any large number will do."""


class Sender:
    """The loop of the sender thread.

    Other threads may only call initiate_close, abandon and handle_interrupted_append, and read fatal_error and
    has_incomplete_rows. The other public attributes are public only for tests.
    """

    def __init__(  # noqa: PLR0913 - one parameter per component that the producer shares with the sender
        self,
        config: ProducerConfig,
        client: NetworkClient,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        metrics: ProducerMetrics,
        call_executor: CallExecutor,
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
            max_in_flight=config.max_in_flight_requests_per_connection,
            get_connection_identity=client.find_api_versions,  # each new connection has its own versions object
            get_topic_id=lambda topic: metadata.snapshot.topic_id(topic),
            get_unix_time_ms=system.wall_ms,
            transactions=transactions,
        )
        self._transactions = transactions
        self._call_executor = call_executor
        self._deliveries = Deliveries(config, accumulator, self.idempotence, metadata, metrics, transactions)
        self._add_producer_id_or_transaction_call()
        # Other threads set these flags without a lock, because a thread may already hold any of the producer's locks
        # when it calls `initiate_close` or `abandon`.
        self._is_closing = False
        self._is_close_forced = False  # whether the current or a later close does not wait for incomplete batches
        self._is_abandoned = False  # whether the producer ended without close()
        self.fatal_error: KafkaSinkError | None = None
        """The error that ends the producer; None while there is none.

        Other threads set it without a lock, in handle_interrupted_append. If two threads set an error at the same time,
        either of the errors may remain.
        """

    # --- start and end

    def initiate_close(self, *, force: bool) -> None:
        """Make the sender end once every batch is acknowledged or has failed. Thread-safe.

        A signal handler may call this while its thread holds any of the producer's locks. So this method takes no lock:
        it only sets flags and wakes the sender.

        `force`: whether to end immediately instead, and fail the incomplete batches.
        """
        if force:  # otherwise do not write the flag, because another thread may be setting it
            self._is_close_forced = True
        self._is_closing = True
        self.client.wakeup()

    def handle_interrupted_append(self, call_name: str, cause: BaseException) -> None:
        """End the producer because a call was interrupted while it was appending records. Thread-safe.

        The interrupted call may have left the producer in an inconsistent state. All records that were not sent fail,
        and close() does not wait for responses about the others.

        `call_name`: the interrupted method, for the error message.
        `cause`: the exception that interrupted it, usually a KeyboardInterrupt.
        """
        error = DeliveryError(
            f"{call_name} was interrupted by {type(cause).__name__} while it appended records, so this producer "
            "cannot continue. Create a new KafkaProducer, and send the failed records again."
        )
        # These need no lock: the flag is never reset, and if two threads set an error at the same time, either may
        # remain.
        self._is_close_forced = True
        self.fatal_error = self.fatal_error or error
        if self._transactions is not None:
            self._transactions.transition_to_fatal_error(error)
        self.client.wakeup()

    def abandon(self, *, force: bool = False) -> None:
        """Make the sender end although close() was not called. Thread-safe.

        This is called when the producer was garbage-collected or the program is exiting. Accepted records are still
        delivered, or fail after delivery.timeout.ms. A transactional producer's records are not delivered, because no
        call can commit their transaction anymore.

        The garbage collector may call this on any thread, between any two bytecodes, while that thread holds any of the
        producer's locks. So this method takes no lock: it only sets flags and wakes the sender.

        `force`: whether to end immediately instead, and fail the incomplete batches.
        """
        self._is_abandoned = True
        self.initiate_close(force=force or self._transactions is not None)

    def run(self) -> None:
        """Run until the producer is closed and every batch is acknowledged or has failed, or until a forced close."""
        try:
            while not self.is_finished:
                self.run_once(self._system.now())
        except BaseException as error:
            # Catch every error, so that the records fail with it as the cause. Otherwise their error would say that the
            # producer was closed.
            self.fatal_error = DeliveryError(f"The producer's sender thread has failed: {error!r}")
            self.fatal_error.__cause__ = error
            _log.exception("The sender thread has failed. No more records are sent.")
            clear_tracebacks(error)  # the records fail with this error, and users may keep it
            if self._transactions is not None:
                self._transactions.transition_to_fatal_error(self.fatal_error)
        finally:
            self.shut_down()

    @property
    def is_finished(self) -> bool:
        """Whether the loop must end, because the producer is closing and waits for no more acknowledgements."""
        return self._is_closing and (self._is_close_forced or not self.has_incomplete_rows)

    @property
    def has_incomplete_rows(self) -> bool:
        """Whether any records are neither acknowledged nor failed."""
        return self.accumulator.has_incomplete_rows()

    def shut_down(self) -> None:
        """Fail all incomplete batches, end all calls that wait for the sender, and close the connections.

        Afterwards, no memory of the buffer pool is reserved, except by an append that was interrupted.
        """
        error = self.fatal_error or ProducerClosedError(
            "The producer was closed before these records were acknowledged."
        )
        # The order of these steps matters. First reject new records, so that none is added after the batches have
        # failed.
        self._stop_accepting_records()
        now_ms = self._system.now()
        self._call_executor.fail(error)
        # Fail a pending commit before the batches. Otherwise the first failed batch would fail it, with an error that
        # asks the caller to abort the transaction, which is no longer possible.
        if self._transactions is not None:
            self._transactions.close(error)
        # Fail stored batches before batches that were sent later, so that the futures of a partition fail in order.
        self._deliveries.fail_stored_batches(error)
        # Fail the other batches while their requests still count as in flight, because only then do their errors say
        # that the records may be stored.
        self._deliveries.fail_batches(self.accumulator.abort_incomplete_batches(error), error, now_ms)
        self._fail_unencoded_batches(now_ms)
        # End the requests only after the connections are closed. Until then, a socket may read the bytes of the
        # batches.
        self.client.close()
        self.idempotence.end_in_flight_requests()
        # Complete the flushes last, so that no flush() returns before all batches are removed.
        self.accumulator.complete_flushes()
        self._log_unobserved_failures()

    def _log_unobserved_failures(self) -> None:
        """Log how many records failed after the producer was abandoned, because nobody may see their futures."""
        failures = self._deliveries.unobserved_failures
        if failures is not None:
            _log.warning(
                "KafkaProducer %s was dropped, or the program exited, without close(). No acknowledgement was received "
                "for %s. First error: %s",
                self.config.client_id,
                format_count(failures.record_count, "record"),
                failures.first_error,
            )

    # --- the loop

    def run_once(self, now_ms: float) -> None:
        """Run one round: fail batches that can no longer be sent, send those that are ready, and handle responses.

        Wait for responses, but at most until the next batch is due or expires.
        """
        snapshot = self.metadata.snapshot
        if self._is_closing:
            self._stop_accepting_records()
        self._fail_unsent_batches_after_fatal_error(now_ms)
        self._fail_batches_dropped_by_transaction(now_ms)
        ready_check = self.accumulator.fill_and_find_ready_nodes(snapshot, now_ms)
        # Fail these batches after the fill, which finds the rows that cannot be encoded, and before the drain.
        # Abandoned batches come last, because the failure of another batch may force later batches to be abandoned.
        self._fail_unencoded_batches(now_ms)
        self._fail_expired_batches(now_ms)
        self._fail_abandoned_batches(now_ms)
        self._request_leaders(ready_check.unknown_leader_topics, now_ms)
        # Send requests about the transaction before the drain. Otherwise, batches of other partitions could use up the
        # free request slots on the connection to the coordinator, and a new partition could be added to the transaction
        # only after all of them were sent.
        transaction_delay_ms = _MAX_POLL_MS if self._transactions is None else self._send_due_requests(now_ms)
        node_ids, node_delay_ms = self._connect_and_find_available_nodes(snapshot, ready_check.ready_node_ids, now_ms)
        batches_by_node = self.accumulator.drain(
            snapshot, node_ids, self.config.max_request_size, now_ms, self.idempotence.admit
        )
        for node_id, batches in batches_by_node.items():
            self._send_produce_request(node_id, batches, snapshot, now_ms)
        request_delay_ms = self._send_due_requests(now_ms)
        # Read the due time again, because the one in `ready_check` is stale. When a batch expires or is drained, the
        # next batch of its queue becomes the head, and may be backing off. Other queues may have become ready just
        # after `now_ms`.
        deadline_ms = min(self.accumulator.next_due_ms(), self.accumulator.next_expiry_ms())
        timeout_ms = min(
            transaction_delay_ms,
            request_delay_ms,
            node_delay_ms,
            ready_check.next_ready_check_delay_ms,
            deadline_ms - now_ms,
            _MAX_POLL_MS,
        )
        responses = self.client.poll(max(0.0, timeout_ms), now_ms)
        try:
            for response in responses:
                self._handle_response(response)
        finally:  # complete the stored batches even if handling a later response raises
            self._deliveries.complete_stored_batches()

    # --- steps of a round

    def _stop_accepting_records(self) -> None:
        """Reject further records. If the producer was abandoned, count records that fail from now on. Idempotent."""
        self.accumulator.close()
        if self._is_abandoned:
            self._deliveries.start_counting_failures()

    def _fail_unsent_batches_after_fatal_error(self, now_ms: float) -> None:
        """Fail the unsent batches and all blocking calls if the producer or its metadata has a fatal error."""
        error = self.fatal_error
        if error is None:
            try:
                self.metadata.raise_if_fatal()
            except KafkaSinkError as metadata_error:
                # Without its traceback, the error does not keep the frames of this call alive.
                error = metadata_error.with_traceback(None)
                if self._transactions is not None:
                    self._transactions.transition_to_fatal_error(error)
        if error is not None:
            self._call_executor.fail(error)
            self._fail_unsent_batches(error, now_ms)

    def _fail_unsent_batches(
        self, error: KafkaSinkError, now_ms: float, kept_batches: Collection[ProducerBatch] = ()
    ) -> None:
        """Fail all staged and queued rows. Batches in flight and those in `kept_batches` are not affected."""
        aborted_batches = self.accumulator.abort_incomplete_batches(
            error, include_in_flight=False, kept_batches=kept_batches
        )
        self._deliveries.fail_batches(aborted_batches, error, now_ms)

    def _fail_batches_dropped_by_transaction(self, now_ms: float) -> None:
        """Fail the unsent batches if their transaction is being aborted or can only be aborted.

        In version 1, batches in doubt are sent again first. A broker may store a batch late, after the transaction has
        ended, if it has not stored a later attempt. It would then become part of the next transaction.
        """
        if self._transactions is not None and self._transactions.should_drop_unsent_batches:
            from spark_kafka_sink.producer.transactions.failures import build_dropped_error  # only for transactions

            kept_batches = (
                self.idempotence.find_resendable_batches_in_doubt()
                if self._transactions.must_resend_batches_in_doubt
                else ()
            )
            self._fail_unsent_batches(build_dropped_error(self._transactions), now_ms, kept_batches)

    def _fail_unencoded_batches(self, now_ms: float) -> None:
        """Fail the futures of rows that could not be encoded."""
        for batch in self.accumulator.take_failed_batches():
            _log.warning("The rows of %r could not be encoded", batch, exc_info=batch.error)
            self._deliveries.fail_batches([batch], build_encoding_error(batch), now_ms)

    def _add_producer_id_or_transaction_call(self) -> None:
        """Add the call that requests producer ids or, in a transactional producer, sends all transaction requests.

        This call stays in the engine until the producer ends, and has a request whenever one is needed.
        """
        if self._transactions is None:
            self._call_executor.add(
                ProducerIdCall(
                    is_needed=lambda: self.idempotence.needs_producer_id and self.accumulator.has_undrained_rows(),
                    set_producer_id_and_epoch=self._set_producer_id_and_epoch,
                    on_failure=self._handle_producer_id_failure,
                    compute_backoff_ms=self._call_executor.compute_backoff_ms,
                )
            )
            return
        from spark_kafka_sink.producer.transactions.transaction_call import TransactionCall  # only for transactions

        self._call_executor.add(TransactionCall(self._transactions, self._is_flushed, self._apply_transaction_state))

    def _set_producer_id_and_epoch(self, id_and_epoch: ProducerIdAndEpoch) -> None:
        self.idempotence.set_producer_id_and_epoch(id_and_epoch)
        self.accumulator.unmute()

    def _handle_producer_id_failure(self, error: KafkaSinkError, now_ms: float) -> None:
        """Fail all unsent records, because the producer could not get the producer id that they need.

        Also end the producer, unless the error is an AuthorizationError: the permission may still be granted.
        """
        self._fail_unsent_batches(error, now_ms)
        if not isinstance(error, AuthorizationError):
            self._set_fatal_error(error)

    def _apply_transaction_state(self) -> None:
        """React to a change of the transaction manager's state.

        Use its producer id and epoch if they have changed. Unmute all queues, because batches that had to wait for the
        transaction may be sent now.
        """
        manager = self._transactions
        if manager is not None and manager.id_and_epoch != self.idempotence.id_and_epoch:
            self.idempotence.set_producer_id_and_epoch(manager.id_and_epoch)
        self.accumulator.unmute()

    def _is_flushed(self) -> bool:
        """Return whether all records are acknowledged or failed, and no produce request is in flight.

        A request counts even if its batch has already failed, because the broker may still store the batch.
        """
        if self.accumulator.has_incomplete_rows():
            return False
        return not any(partition_state.in_flight_batches for partition_state in self.idempotence)

    def _send_due_requests(self, now_ms: float) -> float:
        """Send all due requests for producer ids, transactions and their descriptions.

        Return the delay until the next request is due, or 0 if this call has found a fatal error.
        """
        if self.fatal_error is not None:
            return _MAX_POLL_MS
        delay_ms = self._call_executor.send_due(now_ms)
        self._set_fatal_error(self._find_transaction_error())
        return 0.0 if self.fatal_error is not None else delay_ms

    def _find_transaction_error(self) -> KafkaSinkError | None:
        """Return the error that ends the producer because of its transactions, or None if there is none."""
        manager = self._transactions
        return None if manager is None else manager.fatal_error

    def _request_leaders(self, topics: Collection[str], now_ms: float) -> None:
        """Add topics to the metadata, and request an update if there are any.

        `topics`: the topics that have ready batches whose leader is not known.
        """
        for topic in topics:
            self.metadata.add_topic(topic, now_ms)
        if topics:
            self.metadata.request_update()

    def _connect_and_find_available_nodes(
        self, snapshot: ClusterSnapshot, ready_node_ids: Iterable[int], now_ms: float
    ) -> tuple[list[int], float]:
        """Connect to the ready nodes that are not connected, and find those that can accept a request now.

        Return the available nodes, and the delay until another node may become available. Also record, for the
        partitioner, which of the ready nodes accept requests.
        """
        node_ids: list[int] = []
        delay_ms = _MAX_POLL_MS
        for node_id in ready_node_ids:
            can_send = self.client.ready(snapshot.nodes[node_id], now_ms)  # connects to the node if necessary
            self.accumulator.record_node_availability(node_id, now_ms, is_accepting=can_send)
            if can_send:
                node_ids.append(node_id)
            else:
                # A delay of 0 means no limit, because poll() returns anyway when something happens on a connection or
                # one of its deadlines passes.
                node_delay_ms = self.client.poll_delay_ms(node_id, now_ms) or _MAX_POLL_MS
                delay_ms = min(delay_ms, node_delay_ms)
        return node_ids, delay_ms

    def _fail_expired_batches(self, now_ms: float) -> None:
        """Fail the batches whose delivery.timeout.ms has passed, even those in flight, and request new metadata."""
        for batch in self.accumulator.take_expired_batches(now_ms):
            in_doubt = self._deliveries.may_be_stored(batch)
            cause = find_timeout_cause(batch, self.metadata, self.client)
            error = build_timeout_error(batch, cause, possibly_stored=in_doubt)
            self._deliveries.fail_batch(batch, error, now_ms, in_doubt=in_doubt)
            self.metadata.request_update()

    def _fail_abandoned_batches(self, now_ms: float) -> None:
        """Fail the batches that can neither keep their sequences nor get new ones (see idempotence.py)."""
        for batch in self.idempotence.take_abandoned_batches():
            if not batch.is_done:
                self.accumulator.remove_from_queue(batch)
                self._deliveries.fail_batch(batch, build_abandoned_error(batch, batch.error), now_ms, in_doubt=True)

    def _send_produce_request(
        self, node_id: int, batches: list[ProducerBatch], snapshot: ClusterSnapshot, now_ms: float
    ) -> None:
        """Send the batches for a node in one produce request."""
        transaction = None if self._transactions is None else self._transactions.identity
        message, sent_batches, versions = build_produce_request(batches, snapshot, self.config, transaction)
        expect_response = self.config.acks != 0  # with acks=0, brokers do not respond
        request = self.client.new_client_request(
            node_id, message, now_ms, expect_response=expect_response, tag=sent_batches, versions=versions
        )
        self.client.send(request, now_ms)
        # The message has been encoded, so drop its data. Otherwise, the garbage collector would visit each object in it
        # until the response arrives.
        message.topic_data.clear()
        self._metrics.record_request(sent_batches.batches, now_ms)

    def _handle_response(self, response: ClientResponse) -> None:
        """Handle the response to any of the sender's requests, or the end of a request that gets no response."""
        sent_batches = response.request.tag
        if isinstance(sent_batches, SentBatches):
            fatal_error = self._deliveries.handle_response(response, sent_batches)
        else:
            self._call_executor.handle_response(response)
            fatal_error = self._find_transaction_error()
        self._set_fatal_error(fatal_error)

    def _set_fatal_error(self, error: KafkaSinkError | None) -> None:
        """Set the error that ends the producer, unless there is one already.

        The unsent batches and all blocking calls then fail in the next round, or when the sender ends.

        `error`: the error; None changes nothing.
        """
        # Do not write None: another thread may set an error between the read and the write below
        # (handle_interrupted_append), and None would replace it.
        if error is not None:
            self.fatal_error = self.fatal_error or error
