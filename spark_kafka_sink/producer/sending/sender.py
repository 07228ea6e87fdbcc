"""Sender: the one thread that carries batches from the accumulator to the brokers, and outcomes back to the calls.

`run_once` is a table of contents: ready, expire, drain, send, poll, settle. Batches expire before others are drained,
so that none leaves that has failed already.

For each batch whose request ended, in this order, and nothing in between:

    batch.off_wire        nobody reads its bytes any more: memory may return (rule 5)
    idempotence.off_wire  its place among the partition's open requests is free
    outcome.decide        Done | Retry | Split | Fail
    batch.complete        or reenqueue, split, fail; nothing of it if the batch has expired or was aborted before

Nothing that the brokers do can stop the loop; a fault of our own ends it, and fails everything that waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from random import Random

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.client.metadata import LeaderHint, Metadata
from spark_kafka_sink.client.network_client import NetworkClient
from spark_kafka_sink.client.requests import ClientResponse
from spark_kafka_sink.errors import DeliveryError, KafkaSinkError, ProducerClosedError
from spark_kafka_sink.network.system import System
from spark_kafka_sink.producer.batching.accumulator import RecordAccumulator
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.futures import tell_failed, tell_stored
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.producer.sending.delivery_errors import (
    Answer,
    abandoned_error,
    answers_of,
    attempt_error,
    encoding_error,
    final_error,
    record_errors,
    timeout_error,
    why_not_stored,
    with_doubt,
)
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.producer.sending.outcome import (
    DOUBTFUL,
    SUCCESSES,
    BatchFacts,
    Done,
    Fail,
    Outcome,
    Retry,
    Split,
    decide,
)
from spark_kafka_sink.producer.sending.produce_request import SentBatches, produce_request
from spark_kafka_sink.producer.sending.producer_id_request import IdentityRequest
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.api_keys import ApiKey
from spark_kafka_sink.protocol.messages.produce import ProduceResponse

_log = logging.getLogger(__name__)

_POLL_MS_MAX = 3_600_000.0


class Sender:
    """Its own thread only, except initiate_close, fatal_error and wakeup."""

    def __init__(
        self,
        config: ProducerConfig,
        client: NetworkClient,
        metadata: Metadata,
        accumulator: RecordAccumulator,
        metrics: ProducerMetrics,
        *,
        system: System,
        random: Random,
    ) -> None:
        self._config = config
        self._client = client
        self._metadata = metadata
        self._accumulator = accumulator
        self._metrics = metrics
        self._system = system
        self.idempotence = Idempotence(
            enabled=config.enable_idempotence,
            in_flight_max=config.max_in_flight_requests_per_connection,
            connection_of=client.versions,  # made anew for each connection
        )
        self._identity = IdentityRequest(config, client, self.idempotence, random)
        self._closing = False
        self._forced = False
        self.fatal_error: KafkaSinkError | None = None

    # --- life

    def initiate_close(self, *, force: bool) -> None:
        """From any thread: end when everything is settled, or at once."""
        self._forced = self._forced or force
        self._closing = True
        self._client.wakeup()

    def run(self) -> None:
        """Until it is closed and everything is settled."""
        try:
            while not self.finished:
                self.run_once(self._system.now())
        except BaseException as error:  # also a sys.exit() in a user's code: nobody would take the records from here
            _log.exception("The sender has failed; nothing more will be sent.")
            self.fatal_error = DeliveryError(f"The producer's sender has failed: {error!r}")
            self.fatal_error.__cause__ = error
            self._accumulator.close()
        finally:
            self.shut_down()

    @property
    def finished(self) -> bool:
        return self._closing and (self._forced or not self._accumulator.has_incomplete())

    def shut_down(self) -> None:
        """Fail what is left, close the connections; after that all memory is back."""
        error = self.fatal_error or ProducerClosedError(
            "The producer was closed before these records were acknowledged."
        )
        self._drop(self._accumulator.abort_incomplete(error), error)
        self._tell_what_could_not_be_encoded()
        self._client.close()
        for state in self.idempotence:
            for batch in list(state.on_wire):
                batch.off_wire()
            state.on_wire.clear()

    # --- the loop

    def run_once(self, now: float) -> None:
        self._fail_what_cannot_be_sent()
        snapshot = self._metadata.snapshot
        wait_ms = self._ask_for_identity(now)
        ready = self._accumulator.ready(snapshot, now)
        if ready.unknown_leader_topics:
            self._ask_for_leaders(ready.unknown_leader_topics, now)
        node_ids, delay_ms = self._nodes_to_send_to(snapshot, ready.ready_node_ids, now)
        self._expire(now)
        self._fail_what_is_abandoned()
        drained = self._accumulator.drain(snapshot, node_ids, self._config.max_request_size, now, gate=self.idempotence)
        for node_id, batches in drained.items():
            self._send(node_id, batches, snapshot, now)
        expiry_ms = self._accumulator.next_expiry_ms() - now
        timeout_ms = min(wait_ms, delay_ms, ready.next_check_delay_ms, expiry_ms, _POLL_MS_MAX)
        for response in self._client.poll(max(0.0, timeout_ms), now):
            self._settle(response)

    def _tell_what_could_not_be_encoded(self) -> None:
        for batch in self._accumulator.failed_batches():
            self._drop([batch], encoding_error(batch))

    def _fail_what_cannot_be_sent(self) -> None:
        self._tell_what_could_not_be_encoded()
        error_for_all = self.fatal_error
        if error_for_all is None:
            try:
                self._metadata.raise_if_fatal()
            except KafkaSinkError as error_of_metadata:
                error_for_all = error_of_metadata.with_traceback(None)
        if error_for_all is not None:
            self._drop(self._accumulator.abort_undrained(error_for_all), error_for_all)

    def _ask_for_identity(self, now: float) -> float:
        if self.fatal_error is not None or not self._identity.due or not self._accumulator.has_undrained():
            return _POLL_MS_MAX
        return min(self._identity.ask(now), _POLL_MS_MAX)

    def _ask_for_leaders(self, topics: Iterable[str], now: float) -> None:
        for topic in topics:
            self._metadata.add_topic(topic, now)
        self._metadata.request_update()

    def _nodes_to_send_to(self, snapshot: ClusterSnapshot, ready: Iterable[int], now: float) -> tuple[list[int], float]:
        """Those of the nodes that take a request now, and how long until one of the others might."""
        node_ids: list[int] = []
        delay_ms = _POLL_MS_MAX
        for node_id in ready:
            can_send = self._client.ready(snapshot.nodes[node_id], now)
            self._accumulator.node_latency(node_id, now, can_drain=can_send)
            if can_send:
                node_ids.append(node_id)
            elif not self._client.has_in_flight_requests(node_id):
                delay_ms = min(delay_ms, self._client.poll_delay(node_id, now) or _POLL_MS_MAX)
        return node_ids, delay_ms

    def _expire(self, now: float) -> None:
        for batch in self._accumulator.expired_batches(now):
            in_doubt = batch.on_wire or self.idempotence.is_in_doubt(batch)
            why = why_not_stored(batch, self._metadata)
            self._fail(batch, timeout_error(batch, why, in_doubt=in_doubt), in_doubt=in_doubt)
            self._metadata.request_update()

    def _fail_what_is_abandoned(self) -> None:
        for batch in self.idempotence.take_abandoned():
            if not batch.done:
                self._accumulator.withdraw(batch)
                self._fail(batch, abandoned_error(batch, batch.error), in_doubt=True)

    # --- produce

    def _send(self, node_id: int, batches: list[ProducerBatch], snapshot: ClusterSnapshot, now: float) -> None:
        message, sent, versions = produce_request(batches, snapshot, self._config)
        request = self._client.new_client_request(
            node_id,
            ApiKey.PRODUCE,
            lambda version: message,
            now,
            expect_response=self._config.acks != 0,
            tag=sent,
            versions=versions,
        )
        self._client.send(request, now)
        self._metrics.request_sent(sent.batches, now)

    # --- settle

    def _settle(self, response: ClientResponse) -> None:
        sent = response.request.tag
        if isinstance(sent, SentBatches):
            self._settle_produce(response, sent)
        else:
            self.fatal_error = self._identity.settle(response) or self.fatal_error
            self._accumulator.recheck()

    def _settle_produce(self, response: ClientResponse, sent: SentBatches) -> None:
        """Each batch of the request has its answer now; the calls of those that are stored are told together."""
        message = response.message
        if isinstance(message, ProduceResponse):
            self._metrics.request_answered(response.latency_ms, message.throttle_time_ms, response.received_ms)
            self._take_leader_hints(message, sent)
        connection = self.idempotence.connection(response.request.node_id)
        stored: list[ProducerBatch] = []
        try:
            for batch, answer in answers_of(response, sent, self._config.acks):
                if self._answered(batch, answer, connection, response.received_ms):
                    stored.append(batch)
        finally:
            tell_stored(stored)
            self._accumulator.finish(*stored)

    def _answered(self, batch: ProducerBatch, answer: Answer, connection: object, now: float) -> bool:
        """A batch's request is over. True if the batch is complete, and its calls are to be told."""
        batch.off_wire()
        self.idempotence.off_wire(batch, in_doubt=answer.code in DOUBTFUL)
        outcome = SUCCESSES.get(answer.code) or decide(self._facts(batch, now), answer.code, answer.log_start_offset)
        if isinstance(outcome, Done):
            self.idempotence.stored(batch, connection)
        if batch.done:
            self._settle_late(batch, outcome)
        elif isinstance(outcome, Done):
            return batch.complete(-1 if outcome.duplicate else answer.base_offset, answer.log_append_time)
        elif isinstance(outcome, Retry):
            self._retry(batch, answer, outcome, now)
        elif isinstance(outcome, Split):
            self._split(batch, now)
        else:
            self._give_up(batch, answer, outcome)
        return False

    def _facts(self, batch: ProducerBatch, now: float) -> BatchFacts:
        return BatchFacts(
            record_count=batch.record_count,
            attempts=batch.attempts,
            retries_max=self._config.retries,
            expired=batch.expired(now),
            idempotent=batch.has_sequence,
            is_head=self.idempotence.is_head(batch),
            in_doubt=self.idempotence.is_in_doubt(batch),
        )

    def _settle_late(self, batch: ProducerBatch, outcome: Outcome) -> None:
        """The calls were told before; the answer still says which sequences are stored."""
        if not isinstance(outcome, Done):
            self.idempotence.settled(batch.topic_partition)
        self._accumulator.recheck(batch.topic_partition)

    def _retry(self, batch: ProducerBatch, answer: Answer, outcome: Retry, now: float) -> None:
        error = attempt_error(batch, answer)
        _log.debug("%r is sent again: %s", batch, error)
        if outcome.refresh_metadata:
            self._metadata.request_update()
        self._metrics.records_retried(batch.topic_partition.topic, batch.record_count, now)
        self.idempotence.retried(batch, new_sequence=outcome.new_sequence)
        self._accumulator.reenqueue(batch, now, error)

    def _split(self, batch: ProducerBatch, now: float) -> None:
        children = self._accumulator.split_and_reenqueue(batch, now)
        self.idempotence.split(batch, children)
        self._metrics.batch_split(now)

    def _give_up(self, batch: ProducerBatch, answer: Answer, outcome: Fail) -> None:
        error = final_error(batch, answer, outcome)
        if outcome.refresh_metadata:
            self._metadata.request_update()
        if outcome.fatal:
            self.fatal_error = error
        named, innocent = record_errors(batch, answer)
        self._fail(batch, innocent or error, in_doubt=outcome.in_doubt, by_record=named)

    def _fail(
        self,
        batch: ProducerBatch,
        error: KafkaSinkError,
        *,
        in_doubt: bool,
        by_record: Mapping[int, KafkaSinkError] | None = None,
    ) -> None:
        if not batch.done:  # the accumulator has failed those that it gives up itself
            batch.fail(error)
        self.idempotence.failed(batch, in_doubt=in_doubt)
        self._metrics.records_failed(batch.topic_partition.topic, batch.record_count, self._system.now())
        tell_failed(batch, error, by_record)
        self._accumulator.finish(batch)

    def _drop(self, batches: Iterable[ProducerBatch], error: KafkaSinkError) -> None:
        """The accumulator has failed these already."""
        for batch in batches:
            in_doubt = batch.on_wire or self.idempotence.is_in_doubt(batch)
            self._fail(batch, with_doubt(error) if in_doubt else error, in_doubt=in_doubt)

    def _take_leader_hints(self, message: ProduceResponse, sent: SentBatches) -> None:
        """Brokers that do not lead a partition any more say who does (KIP-951)."""
        hints = [
            LeaderHint(sent.name(topic), row.index, row.current_leader.leader_id, row.current_leader.leader_epoch)
            for topic in message.responses
            for row in topic.partition_responses
            if row.error_code in (codes.NOT_LEADER_OR_FOLLOWER, codes.FENCED_LEADER_EPOCH)
            and row.current_leader is not None
            and row.current_leader.leader_id >= 0
        ]
        if hints:
            nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in message.node_endpoints]
            self._metadata.update_leaders(hints, nodes)
