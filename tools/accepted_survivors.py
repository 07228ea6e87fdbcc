"""Statements whose deletion no test can or should detect, with the reasons.

The mutation tester (tools/mutation_tester.py) does not report these mutants unless a test detects them. A key consists
of the module, the function or method, and the first line of the statement without a comment.
"""

from __future__ import annotations

from collections.abc import Mapping

_SWITCHES_DRIVER_ID_REASON = (
    "saves requests: a driver under another id is fenced or reads the entry, and then switches to the entry's driver id"
)

ACCEPTED_SURVIVORS: Mapping[str, str] = {
    "spark_kafka_sink/producer/transactions/transaction_call.py: TransactionCall.handle_failure: self._on_result()": (
        "only unmutes queues sooner: the sender drops the batches of a failed transaction, whether muted or not"
    ),
    "spark_kafka_sink/producer/transactions/transaction_call.py: TransactionCall.__init__: "
    "self._request: TransactionRequest[Any] | None = None": (
        "declares the attribute: update_due_keys sets it before a key is due"
    ),
    "spark_kafka_sink/producer/transactions/manager.py: TransactionManager.__init__: "
    "self._last_transaction_version = 0": (
        "declares the attribute: on_initialized or take_over sets it before a transaction begins"
    ),
    "spark_kafka_sink/producer/transactions/manager.py: TransactionManager.__init__: "
    "self._init_request_identity = NO_PRODUCER_ID": (
        "declares the attribute: _request_producer_id sets it before InitProducerId is built"
    ),
    "spark_kafka_sink/producer/sending/deliveries.py: Deliveries.__init__: "
    "self._last_response_ms: float | None = None": (
        "declares the attribute: handle_response sets it before complete_stored_batches reads it"
    ),
    "spark_kafka_sink/producer/sending/deliveries.py: Deliveries._retry: "
    '_log.debug("Retrying %r after an error: %s", batch, error)': "logging",
    "spark_kafka_sink/producer/sending/idempotence.py: _PartitionStates.__init__: super().__init__()": (
        "dict.__init__ without arguments does nothing"
    ),
    "spark_kafka_sink/producer/sending/idempotence.py: Idempotence.handle_retry: if not self.enabled:": (
        "see the next statement"
    ),
    "spark_kafka_sink/producer/sending/idempotence.py: Idempotence.handle_retry: return": (
        "nothing uses the phase of a partition if idempotence is disabled"
    ),
    "spark_kafka_sink/producer/sending/sender_thread.py: SenderThread.join: if has_ended:": ("see the next statement"),
    "spark_kafka_sink/producer/sending/sender_thread.py: SenderThread.join: self._thread.join()": (
        "the thread has set `_ended_event` in its last statement, and ends at once without being joined"
    ),
    "spark_kafka_sink/exactly_once/driver.py: Driver.__init__: self._may_be_decided = False": (
        "declares the attribute: _write_decision sets it before it is read"
    ),
    "spark_kafka_sink/exactly_once/driver.py: Driver.commit: "
    "self._transactions.driver_number = start.entry.driver_number": _SWITCHES_DRIVER_ID_REASON,
    "spark_kafka_sink/exactly_once/driver.py: Driver._take_over: if errors_by_id:": "see the next statement",
    "spark_kafka_sink/exactly_once/driver.py: Driver._take_over: "
    "raise precommit_errors.build_other_driver_error(self._transactions.driver_id)": (
        "saves requests: the driver has lost its epoch, so the broker rejects its claim with the same error"
    ),
    "spark_kafka_sink/exactly_once/driver.py: Driver.abort: "
    "self._transactions.driver_number = start.entry.driver_number": _SWITCHES_DRIVER_ID_REASON,
    "spark_kafka_sink/exactly_once/operations.py: _read_entries: driver_ids.load_missing([FIRST_DRIVER_NUMBER])": (
        "saves a request: read_entry lists all driver ids if none is described"
    ),
    "spark_kafka_sink/exactly_once/late_attempts.py: _is_fencing_error: return False": (
        "the caller tests the result for truth, and None is false as well"
    ),
    **{
        f"spark_kafka_sink/requests/idle_clients.py: _reset_after_fork: {text}": (
            "runs only in forked children, whose lines the tester does not record; "
            "test_forked_child_has_empty_pool_when_lock_was_held fails without it"
        )
        for text in ("idle_clients = idle_clients_reference()", "if idle_clients is not None:", "idle_clients._reset()")
    },
    "spark_kafka_sink/exactly_once/query_transactions.py: QueryTransactions.write_next_entry: "
    'raise AssertionError("the last attempt returns or raises")': "unreachable",
}
