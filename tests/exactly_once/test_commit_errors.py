"""Errors of decisions and commits: which errors are converted, and their messages for users of streams and of jobs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from spark_kafka_sink.errors import CommitLostError, DisconnectedError, ExactlyOnceError, KafkaSinkError
from spark_kafka_sink.exactly_once import commit_errors, decision_errors, precommit_errors
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.exactly_once.job_names import JOB_PREFIX
from spark_kafka_sink.exactly_once.precommit_errors import build_other_driver_error
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity

SUMMARY = BatchSummary.from_row_counts({"t": 2}, 6)
TRANSACTIONS = tuple(TransactionIdentity(f"p-1-{partition}-0", 70 + partition, 3, 2) for partition in range(3))
STREAM = Entry("p", timeout_ms=60_000).with_decision(Batch("q", 7), SUMMARY, TRANSACTIONS)
JOB = Entry("p", timeout_ms=60_000, generation=4).with_decision(Batch(), SUMMARY, TRANSACTIONS)
UNNAMED_JOB = dataclasses.replace(JOB, prefix=f"{JOB_PREFIX}host-1-0123456789ab")
FENCED = build_other_driver_error("p-driver")
DISCONNECTED = DisconnectedError("broker 1 closed the connection")

Context = Callable[[Entry], AbstractContextManager[None]]
handle_errors_after_commit: Context = partial(commit_errors.handle_errors_after_commit, is_single_use=False)


def convert(context: Context, entry: Entry, error: KafkaSinkError) -> KafkaSinkError:
    """Return the error that the context raises instead of `error`."""
    with pytest.raises(KafkaSinkError) as raised, context(entry):
        raise error
    return raised.value


def raise_error(error: KafkaSinkError) -> None:
    raise error


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (decision_errors.convert_fencing_before_decision, "batch 7 of query q was not committed: a newer driver has"),
        (handle_errors_after_commit, "batch 7 of query q is committed, but a newer driver has"),
    ],
)
def test_converts_fencing_at_each_step(context: Context, message: str) -> None:
    converted = convert(context, STREAM, FENCED)
    assert isinstance(converted, ExactlyOnceError)
    assert str(converted).startswith(message)
    assert converted.__cause__ is FENCED


def test_does_not_convert_other_errors_before_the_decision() -> None:
    assert convert(decision_errors.convert_fencing_before_decision, STREAM, DISCONNECTED) is DISCONNECTED


def test_other_error_after_the_commit_reports_visible_rows() -> None:
    converted = convert(handle_errors_after_commit, STREAM, DISCONNECTED)
    assert isinstance(converted, ExactlyOnceError)
    assert "is committed (prefix p) and all of its rows are visible" in str(converted)
    assert converted.__cause__ is DISCONNECTED


@pytest.mark.parametrize(
    ("is_single_use", "consequence"),
    [(True, "may continue to show the job: "), (False, "read_committed readers wait for it")],
    ids=["without a name", "with a name"],
)
def test_error_after_the_commit_of_job_is_logged(
    consequence: str, caplog: pytest.LogCaptureFixture, *, is_single_use: bool
) -> None:
    with commit_errors.handle_errors_after_commit(JOB, is_single_use=is_single_use):
        raise_error(FENCED)
    assert "job number 4 is committed (prefix p), but this could not be recorded" in caplog.text
    assert consequence in caplog.text


@pytest.mark.parametrize(
    ("prefix", "batch", "remedy", "remedy_in_doubt"),
    [
        (
            "p",
            Batch("q", 7),
            "If no newer driver is running, start this query again. The batch is then written again. No rows are lost",
            "If no newer driver is running, start this query again. The batch is then written again, or finished if",
        ),
        (
            "p",
            Batch(key="today", scope="t"),
            "Run the job again. No rows are lost",
            "Run the job again. If it was decided at the last moment",
        ),
        (
            "p",
            Batch(),
            "If the newer driver is another run of this job, do not run the job again: it has no idempotencyKey",
            "Do not run the job again before you know whether it is decided: it has no idempotencyKey",
        ),
        (
            UNNAMED_JOB.prefix,
            Batch(),
            "Run the job again, unless another run of it is committed. The job has no idempotencyKey, so another run",
            "Do not run the job again before you know whether it is decided: it has no idempotencyKey",
        ),
    ],
    ids=["stream", "job with a key", "job without a key", "job without a name"],
)
def test_error_of_fenced_driver_advises_on_writing_batch_again(
    prefix: str, batch: Batch, remedy: str, remedy_in_doubt: str
) -> None:
    entry = Entry(prefix, timeout_ms=60_000).with_decision(batch, SUMMARY, TRANSACTIONS)
    not_committed = str(convert(decision_errors.convert_fencing_before_decision, entry, FENCED))
    in_doubt = str(decision_errors.build_decision_in_doubt_error(entry, FENCED))
    assert not_committed.startswith(f"{entry.batch} was not committed: a newer driver has taken over")
    assert in_doubt.startswith(f"It is not known whether {entry.batch} is committed: a newer driver has taken over")
    assert f"None of its rows will become visible. {remedy}" in not_committed
    assert remedy_in_doubt in in_doubt


@pytest.mark.parametrize("batch", [Batch("q", 7), Batch(key="today"), Batch()])
@pytest.mark.parametrize(
    "build_error",
    [
        lambda entry: decision_errors.build_transactions_not_open_error(entry, ["p-1-0"]),
        decision_errors.build_downgrade_error,
    ],
    ids=["ended transactions", "downgrade"],
)
def test_uncommitted_job_without_a_key_is_warned_before_a_rerun(
    build_error: Callable[[Entry], ExactlyOnceError], batch: Batch
) -> None:
    entry = Entry("p", timeout_ms=60_000).with_decision(batch, SUMMARY, TRANSACTIONS)
    message = str(build_error(entry))
    assert "None of the batch's rows are visible. The next start writes them again." in message
    warning = "The job has no idempotencyKey, so start it again only if no other run of it is committed."
    assert (warning in message) is not batch.is_idempotent


def test_job_in_doubt_has_the_same_remedy_whether_or_not_its_driver_was_fenced() -> None:
    for entry in (JOB, UNNAMED_JOB):
        remedy = decision_errors.build_unknown_outcome_remedy(entry)
        for message in (
            str(decision_errors.build_decision_in_doubt_error(entry, FENCED)),
            str(decision_errors.build_decision_in_doubt_error(entry, DISCONNECTED)),
        ):
            assert message.endswith(remedy)


def test_job_in_doubt_is_compared_with_last_decision_before_abort() -> None:
    remedy = decision_errors.build_unknown_outcome_remedy(JOB)
    listing, _, outcomes = remedy.partition("\n")
    assert (
        "find the prefix's last decision with `pykafka transactions list --bootstrap-server HOST:PORT --prefix p`"
        in (listing)
    )
    assert "abort" not in listing.replace("aborted", "")
    decided, undecided, unknown = outcomes.splitlines()
    assert decided.startswith("- job number 4: the job is decided. Do not run it again.")
    assert undecided.startswith("- a smaller number, or none: the job is not decided. If no other job with this prefix")
    assert undecided.endswith(
        "Then run the job again, unless another run of it is committed, such as the one with the smaller number if a "
        "scheduler has retried the job."
    )
    assert unknown.startswith("- anything else: another job may have been decided since.")


@pytest.mark.parametrize("entry", [JOB, UNNAMED_JOB], ids=["job without a key", "job without a name"])
def test_undecided_job_may_be_run_again_unless_another_run_of_it_is_committed(entry: Entry) -> None:
    """A scheduler may have started this run after a run that had been committed, under the same or another prefix."""
    fenced = str(convert(decision_errors.convert_fencing_before_decision, entry, FENCED))
    for message in (decision_errors.build_unknown_outcome_remedy(entry), fenced):
        assert re.search("[Rr]un (it|the job) again, unless another run of it is committed[.:]", message)
        assert "No rows are lost or duplicated" not in message


def test_job_in_doubt_is_aborted_if_no_other_job_can_use_its_prefix() -> None:
    remedy = decision_errors.build_unknown_outcome_remedy(UNNAMED_JOB)
    command = f"`pykafka transactions abort --bootstrap-server HOST:PORT --prefix {UNNAMED_JOB.prefix}`"
    instruction, *results = remedy.splitlines()
    assert f"run {command} (add --log-topic" in instruction
    assert [result.partition(". ")[0].partition(": ")[0] for result in results] == [
        "- It aborts the job if the job is not decided",
        "- It says so if the job is already committed",
        "- It is rejected if the job is decided",
        "- It fails if the log has no entry for the prefix",
    ]
    assert "transactions list" not in remedy


def test_only_jobs_without_key_must_not_be_run_again() -> None:
    warning = re.compile("Do not run the (decided )?job again")
    for entry, is_warned in [(STREAM, False), (JOB, True)]:
        messages = [
            str(commit_errors.build_superseded_commit_error(entry, {TRANSACTIONS[0].transactional_id: FENCED})),
            str(decision_errors.build_decision_in_doubt_error(entry, DISCONNECTED)),
            str(commit_errors.build_unfinished_commit_error(entry, DISCONNECTED, {})),
        ]
        assert [warning.search(message) is not None for message in messages] == [is_warned] * 3
    assert warning.search(decision_errors.build_unknown_outcome_remedy(JOB))


def test_unfinished_job_names_the_command_and_the_time_left_for_it() -> None:
    command = "`pykafka transactions finish --bootstrap-server HOST:PORT --prefix p`"
    for message in (
        str(commit_errors.build_unfinished_commit_error(JOB, DISCONNECTED, {})),
        decision_errors.build_unknown_outcome_remedy(JOB),
    ):
        assert f"{command} before the transaction timeout (60 s since they began) has passed." in message


def test_superseded_driver_lists_rejected_transactions_and_remedy() -> None:
    rejections = {
        transaction.transactional_id: build_broker_error(error_codes.PRODUCER_FENCED, transaction.transactional_id)
        for transaction in reversed(TRANSACTIONS[:2])
    }
    for entry, remedy in [
        (
            STREAM,
            "If none is running, start again: the next start finishes the batch, or names the lost transactions, ",
        ),
        (JOB, "run `pykafka transactions finish --bootstrap-server HOST:PORT --prefix p`, which finishes the job, or "),
    ]:
        message = str(commit_errors.build_superseded_commit_error(entry, rejections))
        assert message.startswith(
            f"{entry.batch} is decided, but a newer driver has taken over the prefix p, or `pykafka "
            "transactions` has, and 2 of the batch's 3 transactions could not be committed:\n"
            "- p-1-0-0 (rows of Spark's partition 0, producer id 70, epoch 3): PRODUCER_FENCED\n"
            "- p-1-1-0 (rows of Spark's partition 1, producer id 71, epoch 3): PRODUCER_FENCED\n"
        )
        assert "A newer driver may have committed these transactions before." in message
        assert ("another process has finished the job, or has given up the transactions" in message) == (entry is JOB)
        assert remedy in message


def test_superseded_driver_lists_a_limited_number_of_transactions() -> None:
    transactions = tuple(TransactionIdentity(f"p-1-{partition}-0", partition, 3, 2) for partition in range(100))
    entry = Entry("p", timeout_ms=60_000).with_decision(Batch(), SUMMARY, transactions)
    rejections = {transaction.transactional_id: FENCED for transaction in transactions}
    message = str(commit_errors.build_superseded_commit_error(entry, rejections))
    assert message.count("rows of Spark's partition") == 20
    assert "- and 80 more\n" in message


def test_start_after_unfinished_job_names_the_job_that_must_not_be_run_again() -> None:
    error = commit_errors.build_unfinished_commit_error(JOB, DISCONNECTED, {})
    message = str(convert(commit_errors.convert_earlier_batch_errors, JOB, error))
    assert message.startswith(
        "This run has written nothing, because an earlier job under its prefix must be finished first: job number 4 is "
        "decided (prefix p), but it is not known whether all of its 3 transactions are committed"
    )
    assert "Do not run the decided job again: " in message
    assert message.endswith(
        "When the decided job is done, start this run again, unless it would write the same rows once more."
    )


def test_start_after_unfinished_stream_has_one_remedy() -> None:
    error = commit_errors.build_unfinished_commit_error(STREAM, DISCONNECTED, {})
    message = str(convert(commit_errors.convert_earlier_batch_errors, STREAM, error))
    assert message == (
        f"This run has written nothing, because the last batch under its prefix must be finished first: {error}"
    )
    assert "Fix the cause and start again" in message


@pytest.mark.parametrize(
    ("batch", "consequence"),
    [
        (Batch("q", 7), "After that, the query continues with its next batch."),
        (Batch(key="today", scope="t"), "After that, a job with this key writes nothing."),
        (
            Batch(),
            "Do not run the decided job again: it has no idempotencyKey, so that would write the committed rows twice.",
        ),
    ],
    ids=["stream", "job with a key", "job without a key"],
)
def test_lost_commit_error_describes_later_run(batch: Batch, consequence: str) -> None:
    entry = Entry("p", timeout_ms=60_000).with_decision(batch, SUMMARY, TRANSACTIONS)
    lost = TRANSACTIONS[0].transactional_id
    error = commit_errors.build_not_committed_error(
        entry, {lost: build_broker_error(error_codes.PRODUCER_FENCED, lost)}
    )
    give_up, _, comparison = str(error).partition(f"the transactions of other task attempts. {consequence} ")
    assert "Record the batch as done with `pykafka transactions give-up" in give_up
    assert comparison.startswith(
        "After give-up, compare the batch with the records in Kafka, and write only the missing rows"
    )


def test_unfinished_commit_calls_only_fenced_transactions_lost() -> None:
    fenced, denied = (transaction.transactional_id for transaction in TRANSACTIONS[:2])
    denial = build_broker_error(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, denied)
    loss = build_broker_error(error_codes.PRODUCER_FENCED, fenced)
    message = str(commit_errors.build_unfinished_commit_error(STREAM, DISCONNECTED, {fenced: loss, denied: denial}))
    assert "lost unless another driver has committed them before, except those with TRANSACTIONAL_ID_AUTH" in message
    message = str(commit_errors.build_unfinished_commit_error(STREAM, DISCONNECTED, {denied: denial}))
    assert "They are still open." in message
    assert "lost" not in message


@pytest.mark.parametrize(
    ("prefix", "end"),
    [("p", "they time out, or until the next start with this prefix."), (UNNAMED_JOB.prefix, "they time out.")],
)
def test_rejected_aborts_name_what_ends_the_transactions(
    caplog: pytest.LogCaptureFixture, prefix: str, end: str
) -> None:
    commit_errors.log_rejected_aborts(prefix, {"a": build_broker_error(error_codes.POLICY_VIOLATION, "a")})
    assert f"which may stay open until {end} Until then, read_committed readers wait for them. If no query or job" in (
        caplog.text
    )


@pytest.mark.parametrize("entry", [STREAM, JOB])
def test_start_after_lost_commit_can_be_repeated_once_the_loss_is_accepted(entry: Entry) -> None:
    lost = TRANSACTIONS[0].transactional_id
    error = commit_errors.build_not_committed_error(
        entry, {lost: build_broker_error(error_codes.PRODUCER_FENCED, lost)}
    )
    converted = convert(commit_errors.convert_earlier_batch_errors, entry, error)
    assert isinstance(converted, CommitLostError)
    assert re.search("give-up .*When the (batch|decided job) is done, start this run again", str(converted))


def test_lost_transactions_are_listed_with_their_producers_apart_from_open_ones() -> None:
    lost, still_open = (transaction.transactional_id for transaction in TRANSACTIONS[:2])
    rejections = {
        lost: build_broker_error(error_codes.PRODUCER_FENCED, lost),
        still_open: build_broker_error(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, still_open),
    }
    error = commit_errors.build_not_committed_error(STREAM, rejections)
    assert isinstance(error, CommitLostError)
    message = str(error)
    assert "1 of its 3 transactions can no longer be committed" in message
    assert f"- {lost} (rows of Spark's partition 0, producer id 70, epoch 3): PRODUCER_FENCED" in message
    assert f"these could not be committed yet, and are still open:\n- {still_open}: " in message
    assert "`pykafka transactions give-up --bootstrap-server HOST:PORT --prefix p`" in message
    not_yet = str(commit_errors.build_uncommitted_batch_error(STREAM, rejections))
    assert f"Can no longer be committed:\n- {lost}\nNone of them has been given up yet." in not_yet


def test_forgotten_transactions_may_be_committed() -> None:
    lost = TRANSACTIONS[0].transactional_id
    forgotten = build_broker_error(error_codes.TRANSACTIONAL_ID_NOT_FOUND, lost)
    message = str(commit_errors.build_not_committed_error(STREAM, {lost: forgotten}))
    assert "the brokers no longer know 1 of its 3 transactions" in message
    assert "those of the others are committed" in message


def test_forgotten_transactions_may_be_committed_even_if_others_are_lost() -> None:
    lost, forgotten = (transaction.transactional_id for transaction in TRANSACTIONS[:2])
    rejections = {
        lost: build_broker_error(error_codes.PRODUCER_FENCED, lost),
        forgotten: build_broker_error(error_codes.INVALID_PRODUCER_ID_MAPPING, forgotten),
    }
    message = str(commit_errors.build_not_committed_error(STREAM, rejections))
    assert "are lost to read_committed readers (those with INVALID_PRODUCER_ID_MAPPING may be committed)" in message
    assert "may be committed" not in str(commit_errors.build_not_committed_error(STREAM, {lost: rejections[lost]}))


def test_messages_that_advise_comparison_mention_open_transactions() -> None:
    """A user who compares too early finds no records behind an open transaction, and writes their rows again."""
    fenced = {TRANSACTIONS[0].transactional_id: build_broker_error(error_codes.PRODUCER_FENCED, "fenced")}
    messages = (
        decision_errors.build_unknown_outcome_remedy(JOB),
        decision_errors.build_unknown_outcome_remedy(UNNAMED_JOB),
        str(commit_errors.build_superseded_commit_error(JOB, fenced)),
        str(commit_errors.build_not_committed_error(STREAM, fenced)),
        str(precommit_errors.build_log_lost_error("p", "log")),
        str(precommit_errors.build_unproven_decision_error(STREAM, STREAM.batch, SUMMARY, SUMMARY)),
        str(precommit_errors.build_replay_mismatch_error(STREAM, STREAM.batch, SUMMARY, SUMMARY)),
        str(precommit_errors.build_unknown_prefix_error("log", UNNAMED_JOB.prefix, log_exists=True)),
    )
    for message in messages:
        assert re.search("[Cc]ompare (the|its|their) ", message)
        assert decision_errors.COMPARISON_HINT in message
        assert "missing ones" in message or "missing rows" in message, "the batch may be committed in part"


def test_comparison_waits_for_all_transactions_that_hide_rows() -> None:
    """Kafka acknowledges the end of a transaction before it has written the marker to each partition."""
    for state in ("Ongoing", "PrepareCommit", "PrepareAbort"):
        assert state in decision_errors.COMPARISON_HINT
    assert "stop them first" in decision_errors.COMPARISON_HINT
