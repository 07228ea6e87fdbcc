"""The rare branches of exactly once and idempotence that the explorers must reach.

Each explorer counts the branches of its own table, and fails with `--require-branches` if no run reaches one of them
(explorer_command.py). branch_counter.py explains the markers.
"""

from __future__ import annotations

from tests.branch_counter import Branch

_DRIVER = "exactly_once.driver:Driver"
_QUERY = "exactly_once.query_transactions:QueryTransactions"
_ABORTS = "exactly_once.transaction_aborts"
_ATTEMPTS = "exactly_once.late_attempts"
_OPERATIONS = "exactly_once.operations"
_IDEMPOTENCE = "producer.sending.idempotence:Idempotence"
_PARTITION = "producer.sending.partition_states:PartitionState"
_OUTCOME = "producer.sending.outcome"
_DELIVERIES = "producer.sending.deliveries:Deliveries"
_MANAGER = "producer.transactions.manager:TransactionManager"

EXACTLY_ONCE_BRANCHES = (
    # The start of a driver
    Branch(
        "a superseded driver begins a batch",
        "exactly_once.start_checks:check_may_begin",
        "if entry.has_superseded(driver_name):",
    ),
    Branch(
        "a newer driver claims the prefix before a start has read the log",
        "exactly_once.start_checks:check_not_overtaken",
        "if is_overtaken:",
    ),
    Branch(
        "a start commits a batch that is decided and not done",
        f"{_DRIVER}._take_over",
        "if entry.state is EntryState.DECIDED:",
    ),
    Branch(
        "a claim is not the newest entry when it is read back",
        f"{_QUERY}.claim",
        "if self.read_entry() != claim:",
    ),
    Branch(
        "a driver hands over to the next driver id because epochs run out",
        f"{_QUERY}.fence",
        "self._hand_over(identity)",
    ),
    Branch("a driver id without an entry does not hand over", f"{_QUERY}._hand_over", "return"),
    Branch(
        "another driver hands over after this one was granted an epoch",
        f"{_QUERY}.read_entry",
        "if entry.driver_number != self.driver_number:",
    ),
    # Entries of the decision log
    Branch(
        "a driver is fenced while it writes an entry",
        f"{_QUERY}.write_next_entry",
        "except ProducerFencedError as error:",
    ),
    Branch(
        "a fenced driver finds that its entry was written",
        f"{_QUERY}.write_next_entry",
        "if newest_entry.state is entry.state:",
    ),
    Branch(
        "a fenced driver claims the prefix again",
        f"{_QUERY}._try_reclaim",
        "return (WriterState(self.claim(identity, previous_entry, claim)), claim)",
    ),
    Branch(
        "a fenced driver finds another driver's entry before it requests an epoch",
        f"{_QUERY}._try_reclaim",
        "if not any(map(possibly_stale_entry.is_same_apart_from_reclaim, own_entries)):",
    ),
    Branch(
        "a fenced driver finds another driver's entry under its new epoch",
        f"{_QUERY}._try_reclaim",
        "if not any(map(previous_entry.is_same_apart_from_reclaim, own_entries)):",
    ),
    Branch(
        "the response to the EndTxn of an entry is lost",
        "exactly_once.log_writer:LogWriter._end_transaction",
        "if call.in_doubt_keys:",
    ),
    Branch(
        "an entry gets a new epoch because an EndTxn may be executed late",
        "exactly_once.log_writer:LogWriter._ensure_safe_epoch",
        "timeout_ms = self._fetch_transaction_timeout_ms(transactional_id)",
    ),
    # The decision and the commit
    Branch(
        "a decision is abandoned because transactions cannot be described",
        f"{_DRIVER}._write_decision",
        "decision.abandon()",
    ),
    Branch(
        "a batch is not decided because a task's transaction has ended",
        "exactly_once.commit_checks:find_transaction_state_error",
        "if problems:",
    ),
    Branch(
        "a batch is not decided because too little time is left",
        "exactly_once.commit_checks:find_transaction_deadline_error",
        "return decision_errors.build_transaction_deadline_error(entry, description, remaining_ms)",
    ),
    Branch(
        "the outcome of a decision is unknown",
        f"{_DRIVER}._decide",
        "raise decision_errors.build_decision_in_doubt_error(entry, error) from error",
    ),
    Branch(
        "the commit of a decided batch remains unfinished",
        f"{_DRIVER}._commit_transactions",
        "raise commit_errors.build_unfinished_commit_error(entry, error, errors_by_id) from error",
    ),
    Branch(
        "a commit is rejected because a newer driver has finished the batch",
        f"{_QUERY}.has_lost_epoch",
        "description is not None and description.id_and_epoch != identity",
    ),
    Branch(
        "a failure after the commit is logged",
        "exactly_once.commit_errors:log_errors_after_commit",
        "except KafkaSinkError as error:",
    ),
    # Aborts
    Branch("an abort finds its batch decided", f"{_DRIVER}.abort", "if start.entry.has_decided(batch):"),
    Branch(
        "a stopped query has an open transaction of its driver",
        f"{_DRIVER}.abort_unreported",
        "if description is not None and description.state == ONGOING:",
    ),
    Branch(
        "an abort finds another driver's entry under its new epoch",
        f"{_DRIVER}._try_abort",
        "if not is_own_entry(entry):",
    ),
    Branch(
        "an abort that is fenced after its claim recognizes the claim",
        f"{_DRIVER}._abort_if_current",
        "any(map(entry.is_same_apart_from_reclaim, own_claims))",
    ),
    Branch(
        "the abort or fence of a task's transaction is rejected", f"{_ABORTS}:_log_rejections", "for error in errors:"
    ),
    Branch(
        "version 1: a listed transaction has another epoch when it is aborted",
        f"{_ABORTS}:_merge_partitions",
        "return description",
    ),
    Branch(
        "version 1: a fence aborts a newer transaction and is sent again",
        f"{_ABORTS}:_find_transactions_aborted_despite_rejection",
        "description.state == COMPLETE_ABORT and description.id_and_epoch == expected_identities[transactional_id]",
    ),
    # Tasks
    Branch(
        "the transactional id of an attempt is in use",
        f"{_ATTEMPTS}:check_and_renumber_attempt",
        "rerun_number = compute_rerun_attempt_number(task_attempt.attempt, spark_attempt_id)",
    ),
    Branch(
        "an attempt is late when it has its transactional id",
        f"{_ATTEMPTS}:raise_if_late",
        "if not batch_start.is_waiting_for_tasks(describe([batch_start.driver_id]).get(batch_start.driver_id)):",
    ),
    Branch(
        "an attempt is fenced by a newer driver while it writes",
        f"{_ATTEMPTS}:raise_if_late_attempt_was_fenced",
        "if not batch_start.is_waiting_for_tasks(description):",
    ),
    Branch(
        "a batch is older than the decided one",
        "exactly_once.batch_start:BatchStart.is_decided",
        "if _get_batch_number(batch) < _get_batch_number(last_batch):",
    ),
    Branch(
        "a skipped batch has other rows",
        "exactly_once.batch_start:BatchStart.check_skipped_batch",
        "if not decided_summary.has_same_row_counts(summary):",
    ),
    # Operators
    Branch("an operator finishes a decided batch", f"{_OPERATIONS}:_finish_decided_batch", "entry.as_done()"),
    Branch("an operator gives up a decided batch", f"{_OPERATIONS}:_finish_decided_batch", "entry.as_given_up()"),
    Branch(
        "an operator may not abort a decided batch",
        f"{_OPERATIONS}:check_not_decided",
        "if entry.state is EntryState.DECIDED:",
    ),
    Branch(
        "an operator is fenced by a newer driver",
        f"{_OPERATIONS}:_lease_query_transactions",
        "except ProducerFencedError as error:",
    ),
)

PRODUCER_BRANCHES = (
    # Epochs
    Branch("the producer bumps its epoch", f"{_IDEMPOTENCE}._bump_epoch", "ProducerIdAndEpoch(producer_id, epoch + 1)"),
    Branch("the epochs of a producer id are used up", f"{_IDEMPOTENCE}._bump_epoch", "NO_PRODUCER_ID"),
    Branch(
        "sequences restart when a broker has assigned a producer id",
        f"{_IDEMPOTENCE}.set_producer_id_and_epoch",
        "self._restart_sequences(partition_state)",
    ),
    Branch("pending batches get new sequences", f"{_PARTITION}.start_sequences", "self._assign_sequence(batch)"),
    Branch(
        "a new epoch waits for batches of the previous one",
        f"{_IDEMPOTENCE}._try_assign_sequence",
        "if partition_state.pending_batches or partition_state.in_flight_batches:",
    ),
    Branch(
        "a retry meets batches of another epoch in its queue",
        "producer.batching.partition_queues:has_earlier_sequence",
        "if (batch.producer_id, batch.producer_epoch) != (other.producer_id, other.producer_epoch):",
    ),
    # Rejected sequences
    Branch(
        "a broker returns OUT_OF_ORDER_SEQUENCE_NUMBER",
        f"{_OUTCOME}:_decide_sequence_error",
        "if code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER:",
    ),
    Branch(
        "a broker returns UNKNOWN_PRODUCER_ID",
        f"{_OUTCOME}:_decide_sequence_error",
        "if code == codes.UNKNOWN_PRODUCER_ID:",
    ),
    Branch(
        "UNKNOWN_PRODUCER_ID restarts no sequences",
        f"{_OUTCOME}:_decide_sequence_error",
        "log_start_offset == -1 or not facts.is_head",
    ),
    Branch(
        "a batch with a rejected sequence gets a new one",
        f"{_OUTCOME}:_decide_restart",
        "Retry(needs_new_sequence=True)",
    ),
    Branch(
        "a batch with a rejected sequence fails because it may be stored",
        f"{_OUTCOME}:_decide_restart",
        "Fail(in_doubt=True)",
    ),
    # Gaps
    Branch("a failed batch leaves a gap", f"{_PARTITION}.record_failure", "self.extend_gap(batch.base_sequence)"),
    Branch("a failed batch may be stored", f"{_PARTITION}.record_failure", "self.has_unresolved_sequence = True"),
    Branch(
        "an unresolved sequence is missing",
        f"{_PARTITION}.resolve_sequences",
        "self.extend_gap(first_unacked_sequence)",
    ),
    Branch(
        "batches before a gap are sent first",
        f"{_IDEMPOTENCE}._update_phase",
        "partition_state.transition_to(REPAIRING)",
    ),
    Branch(
        "a batch behind a gap is abandoned because it may be stored",
        "producer.sending.sender:Sender._fail_abandoned_batches",
        "self.accumulator.remove_from_queue(batch)",
    ),
    # Retries and splits
    Branch(
        "a batch waits for requests to the previous leader",
        f"{_IDEMPOTENCE}.admit",
        "partition_state.in_flight_batches and (not can_send_to(partition_state, leader_id, self._max_in_flight))",
    ),
    Branch(
        "a retry is inserted behind an earlier batch",
        "producer.batching.partition_queues:PartitionQueue.insert_in_sequence_order",
        "index += 1",
    ),
    Branch("a batch that may be stored is split", f"{_PARTITION}.replace", "if batch in self.in_doubt_batches:"),
    Branch(
        "a split batch is split again",
        "producer.batching.accumulator:RecordAccumulator.split_and_reenqueue",
        "batch.uncompressed_bytes // 2",
    ),
    # Timeouts
    Branch(
        "a batch times out although it may be stored",
        "producer.sending.sender:Sender._fail_expired_batches",
        "self._deliveries.may_be_stored(batch)",
    ),
    Branch(
        "a batch that has already failed turns out to be stored",
        f"{_DELIVERIES}._handle_late_response",
        "isinstance(outcome, Done)",
    ),
    Branch(
        "the response to a batch that has already failed is an error",
        f"{_DELIVERIES}._handle_late_response",
        "self._idempotence.handle_late_failure(batch)",
    ),
)

TRANSACTION_BRANCHES = (
    # Calls
    Branch("an abort replaces a commit that was not sent", f"{_MANAGER}.abort", "self._lifecycle.discard_pending()"),
    Branch(
        "a call that has timed out is repeated",
        "producer.transactions.states:TransactionLifecycle.start_or_join",
        "if pending_operation is not None and pending_operation.name == name:",
    ),
    Branch("close() aborts an open transaction", f"{_MANAGER}.abort_or_get_pending", "return self.abort()"),
    Branch(
        "a transaction ends while send() waits",
        f"{_MANAGER}.require_transaction_number",
        "if expected_number is not None and (transaction is None or transaction.number != expected_number):",
    ),
    Branch(
        "a record comes too late for a prepared transaction",
        f"{_MANAGER}.require_transaction_number",
        "if not transaction.accepts_records:",
    ),
    Branch(
        "a producer takes over a prepared transaction", f"{_MANAGER}.take_over", "self._may_have_late_request = True"
    ),
    # Requests
    Branch(
        "a request without a response may be executed late",
        f"{_MANAGER}.handle_disconnect",
        "was_sent and request.affects_next_transaction_if_late",
    ),
    Branch(
        "a rejected request may have been executed", f"{_MANAGER}.handle_response", "if may_be_stored(classification):"
    ),
    Branch(
        "a rejected request makes the transaction abortable",
        f"{_MANAGER}.handle_failure",
        "if verdict is Verdict.ABORTABLE and self._can_abort_after_failure(request):",
    ),
    Branch("the coordinator aborts a transaction because of its timeout", f"{_MANAGER}.handle_result", "advice"),
    Branch(
        "an abort finds that no transaction has begun",
        "requests.transactions:EndTransaction.classify",
        "return Classification(Verdict.DONE, codes.NONE)",
    ),
    # Epochs and sequences
    Branch(
        "a transaction begins under a new epoch",
        f"{_MANAGER}.begin",
        "if self._needs_new_epoch(version):",
    ),
    Branch(
        "a transaction is the first one after an upgrade to version 2", f"{_MANAGER}._needs_new_epoch", "version >= 2"
    ),
    Branch(
        "version 1: a transaction with a gap is followed by a new epoch",
        f"{_MANAGER}._complete_transaction",
        "self._lifecycle.transition_to(_State.INITIALIZING)",
    ),
    Branch(
        "a batch with a rejected sequence fails in a transaction",
        f"{_OUTCOME}:_decide_restart",
        "if facts.is_transactional:",
    ),
    Branch(
        "sequences behind a gap restart only when the transaction has ended",
        f"{_IDEMPOTENCE}._restart_sequences",
        "if self._transactions is not None:",
    ),
    Branch(
        "batches before a gap are sent first",
        f"{_IDEMPOTENCE}._update_phase",
        "partition_state.transition_to(REPAIRING)",
    ),
    Branch("a batch fails after EndTxn was sent", f"{_MANAGER}.handle_failed_batch", "transaction.is_end_sent"),
    Branch(
        "a batch that has already failed turns out to be stored",
        f"{_DELIVERIES}._handle_late_response",
        "isinstance(outcome, Done)",
    ),
    Branch("a batch of a transaction is split", f"{_OUTCOME}:decide_outcome", "return Split()"),
)
