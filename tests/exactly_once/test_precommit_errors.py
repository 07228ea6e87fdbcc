"""Errors before a commit: brokers without the required APIs are rejected before a task starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from spark_kafka_sink.broker.cluster import ClusterConfig
from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.errors import BrokerError, DecodeError, ExactlyOnceError, PreflightError, ProducerFencedError
from spark_kafka_sink.exactly_once import commit_errors, precommit_errors
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.decision_errors import COMPARISON_HINT
from spark_kafka_sink.exactly_once.driver import Driver
from spark_kafka_sink.exactly_once.entries import Batch, Entry, WriterKind
from spark_kafka_sink.exactly_once.job_names import JOB_PREFIX
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, build_task_id
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import Query

ABSENT = VersionRange(1, 0)
OF_KAFKA_3 = (ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS)


@pytest.mark.parametrize("is_single_use", [True, False], ids=["job", "stream"])
@pytest.mark.parametrize("absent", [OF_KAFKA_3, (ApiKey.INIT_PRODUCER_ID,)], ids=["before 3.0", "no transactions"])
def test_rejects_brokers_without_transactions_before_the_first_row(
    absent: tuple[ApiKey, ...], *, is_single_use: bool
) -> None:
    config = ClusterConfig(version_limits=dict.fromkeys(absent, ABSENT))
    with EmbeddedBroker(config, ListenerConfig()) as broker:
        settings = dataclasses.replace(Query(broker).settings, is_single_use=is_single_use)
        with Driver(settings) as driver, pytest.raises(PreflightError) as error:
            driver.begin("driver-1")
    assert "nothing was written" in str(error.value)
    assert "Exactly-once delivery requires Kafka 3.0 or newer" in str(error.value)


@pytest.mark.parametrize("code", [error_codes.INVALID_TXN_STATE, error_codes.POLICY_VIOLATION], ids=["lost", "not yet"])
@pytest.mark.parametrize(("many", "shown_count", "last"), [(20, 20, "p-1-9-0"), (300, 21, "and 280 more")])
def test_error_names_first_transactions_and_counts_the_others(
    code: int, many: int, shown_count: int, last: str
) -> None:
    names = [build_task_id("p", TaskAttempt(1, partition, 0)) for partition in range(many)]
    written = tuple(TransactionIdentity(name, 4711, 12, 2) for name in names)
    entry = Entry("p").with_decision(Batch("q", 1), BatchSummary.from_row_counts({"t": many}, many), written)
    error = commit_errors.build_not_committed_error(entry, {name: build_broker_error(code, name) for name in names})
    lines = [line for line in str(error).splitlines() if line.startswith("- ")]
    assert len(lines) == shown_count
    assert lines[-1].startswith(f"- {last}")


def test_other_rejections_of_tasks_are_not_converted() -> None:
    error = build_broker_error(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id p-1-0-0")
    with (
        pytest.raises(BrokerError) as raised,
        precommit_errors.convert_rejected_transaction_timeout("p-1-0-0", 900_000, is_user_timeout=True),
    ):
        raise error
    assert raised.value is error


USER_TIMEOUT = "Decrease kafka.transaction.timeout.ms"


@pytest.mark.parametrize(
    ("is_user_timeout", "driver_remedy", "task_remedy"),
    [
        (True, USER_TIMEOUT, USER_TIMEOUT),
        (False, "The sink needs this timeout for its own transactions.", "kafka.transaction.timeout.ms is not set"),
    ],
)
def test_rejected_timeout_has_the_remedy_for_its_origin(
    is_user_timeout: bool, driver_remedy: str, task_remedy: str
) -> None:
    limit_error = precommit_errors.build_timeout_limit_error("p-driver", 900_000)
    in_driver = precommit_errors.build_timeout_rejected_error(limit_error, is_user_timeout=is_user_timeout)
    convert = precommit_errors.convert_rejected_transaction_timeout("p-1-0-0", 900_000, is_user_timeout=is_user_timeout)
    with pytest.raises(ExactlyOnceError) as in_task, convert:
        raise build_broker_error(error_codes.INVALID_TRANSACTION_TIMEOUT, "transactional id p-1-0-0")
    for error, transactional_id, remedy in [
        (in_driver, "p-driver", driver_remedy),
        (in_task.value, "p-1-0-0", task_remedy),
    ]:
        assert (
            f"transactional id {transactional_id}: INVALID_TRANSACTION_TIMEOUT (50). The broker's "
            f"transaction.max.timeout.ms is less than the 900000 ms that the sink has requested. {remedy}"
        ) in str(error)


def test_start_error_is_converted_if_brokers_reject_a_request() -> None:
    rejection = build_broker_error(error_codes.CLUSTER_AUTHORIZATION_FAILED, "cluster")
    with (
        pytest.raises(PreflightError, match="nothing was written: ") as raised,
        precommit_errors.convert_start_errors(),
    ):
        raise rejection
    assert str(rejection) in str(raised.value)


ENTRY = Entry("p").with_claim("driver-2", "/checkpoint", 60_000, writer_kind=WriterKind.STREAM)


def test_error_names_what_stopped_the_write() -> None:
    errors = {
        "prefix p: driver-2. This driver, driver-1,": precommit_errors.build_superseded_error(ENTRY, "driver-1"),
        "prefix p: driver-2. It did so after this": precommit_errors.build_overtaken_error(ENTRY, "driver-1"),
        "under the prefix p at the same time": precommit_errors.build_concurrent_start_error("p", "driver-1"),
        "Topic decisions, the decision log, has no": precommit_errors.build_log_lost_error("p", "decisions"),
        "records in partition 3 were deleted": precommit_errors.build_log_records_deleted_error("decisions", 3),
        "checkpoint /checkpoint, and this": precommit_errors.build_checkpoint_mismatch_error(ENTRY, "/b"),
        "taken over the prefix p. It wrote nothing.": precommit_errors.build_late_attempt_error(
            "p", "It wrote nothing."
        ),
    }
    for message, error in errors.items():
        assert message in str(error)


def test_moved_checkpoint_must_contain_last_decided_batch() -> None:
    """A stop may interrupt the query after the sink's commit and before Spark's. The batch is then run again."""
    message = str(precommit_errors.build_checkpoint_mismatch_error(ENTRY, "/b"))
    steps = (
        "Move it back, let the query finish its last batch at the old location, and stop it",
        "Check that `pykafka transactions` shows the query's last decision as done, and that the checkpoint's commits "
        "folder contains a file with the number of this batch",
        "If not, start and stop the query once more, and check again",
        "Move the checkpoint to the new location, and start the query there with another prefix",
    )
    positions = [message.find(step) for step in steps]
    assert -1 not in positions
    assert positions == sorted(positions)


def test_drivers_of_one_series_of_jobs_keep_their_prefix_because_it_knows_their_keys() -> None:
    message = str(precommit_errors.build_concurrent_start_error("p", "driver-1"))
    assert "Start only one driver at a time. If the drivers belong to different streams or series of jobs, " in message
    assert message.endswith("with a new prefix, a job that is run again writes its rows once more.")


SUMMARY, OTHER_SUMMARY = (BatchSummary.from_row_counts({"t": rows}, rows) for rows in (100, 150))


@pytest.mark.parametrize(
    ("batch", "option", "other_option", "cause", "newest_checkpoint"),
    [
        (
            Batch("q", 7),
            "transactionalIdPrefix",
            "idempotencyKey",
            "or the checkpoint was restored or copied.",
            "- If there is a newer checkpoint, continue with it.\n",
        ),
        (
            Batch(key="today", scope="t"),
            "idempotencyKey",
            "transactionalIdPrefix",
            "or the key is used for another job.",
            "",
        ),
    ],
    ids=["stream", "job"],
)
def test_mismatch_advises_new_name_only_if_all_rows_are_missing(
    batch: Batch, option: str, other_option: str, cause: str, newest_checkpoint: str
) -> None:
    """A new key or prefix is not compared with any decision, so it writes the committed rows once more."""
    message = str(precommit_errors.build_replay_mismatch_error(Entry("p"), batch, SUMMARY, OTHER_SUMMARY))
    assert f"Nothing was written now. The source returns different rows when it is read again, {cause} " in message
    assert f"{cause} What to do:\n{newest_checkpoint}- If the plan itself returns different rows" in message
    results = (
        '\n  - All rows are there: set onReplayMismatch to "warn" for this run to keep the committed rows.'
        "\n  - Only some are there: first write the missing ones with a separate job. Then set onReplayMismatch to "
        '"warn" for this run.'
        f"\n  - None are there: start with another {option}. Do so only then: it writes all rows of this run, even "
        "those that are already in Kafka."
    )
    assert message.endswith(
        f"\n- Otherwise, compare the rows of this run with the records in Kafka. {COMPARISON_HINT}{results}"
    )
    assert other_option not in message
    unproven = str(precommit_errors.build_unproven_decision_error(Entry("p"), batch, SUMMARY, SUMMARY))
    assert unproven.endswith(results.replace("\n  - ", "\n- "))


@pytest.mark.parametrize(
    "build_error", [precommit_errors.build_superseded_error, precommit_errors.build_overtaken_error]
)
def test_driver_of_job_is_not_started_after_another_run_of_the_job_without_a_key(
    build_error: Callable[[Entry, str], ExactlyOnceError],
) -> None:
    sentence = (
        "If the newer driver is another run of this job, start this one again only if the job has an idempotencyKey"
    )
    jobs = Entry("p").with_claim("job-2", "", 60_000, writer_kind=WriterKind.JOB)
    assert sentence in str(build_error(jobs, "job-1"))
    assert sentence not in str(build_error(ENTRY, "driver-1"))


def test_lost_log_is_compared_when_its_transactions_have_timed_out() -> None:
    """`kafka-transactions.sh abort` ends a transaction in one partition. At the coordinator, it stays open."""
    message = str(precommit_errors.build_log_lost_error("p", "decisions"))
    assert "1. Wait until the transactions that are open under this prefix have timed out" in message
    assert "kafka-transactions.sh abort" not in message


def test_unreadable_entry_is_reported_with_its_position_and_cause() -> None:
    cause = DecodeError("its format version is 9")
    error = precommit_errors.build_unreadable_entry_error("topic decisions, partition 1, offset 2", "p", cause)
    assert isinstance(error, DecodeError)
    assert str(error).startswith("topic decisions, partition 1, offset 2: the newest decision under the prefix p")
    assert str(cause) in str(error)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            ENTRY,
            "belongs to a stream with the checkpoint /checkpoint (newest driver: driver-2), but this is a batch job",
        ),
        (
            Entry("p")
            .with_claim("job-2", "", 60_000, writer_kind=WriterKind.JOB)
            .with_decision(Batch(key="k"), BatchSummary(0, 0, (), ""), ()),
            "belongs to batch jobs (newest driver: job-2; its last decision is the job with idempotencyKey 'k'), but "
            "this is a stream",
        ),
    ],
)
def test_error_names_the_owner_of_a_prefix_of_another_kind(entry: Entry, message: str) -> None:
    assert f"transactionalIdPrefix p {message}." in str(precommit_errors.build_writer_kind_mismatch_error(entry))


def test_unknown_prefix_is_distinguished_from_a_missing_log() -> None:
    messages = [
        str(precommit_errors.build_unknown_prefix_error("decisions", "p", log_exists=log_exists))
        for log_exists in (True, False)
    ]
    assert "The decision log decisions has no entry for the prefix p," in messages[0]
    assert "The decision log decisions does not exist," in messages[1]


def test_only_the_entry_of_an_unnamed_job_may_be_deleted() -> None:
    job_prefix = f"{JOB_PREFIX}host-1-0123456789ab"
    for prefix, log_exists, may_be_deleted in [
        (job_prefix, True, True),
        (job_prefix, False, False),
        ("p", True, False),
    ]:
        error = precommit_errors.build_unknown_prefix_error("decisions", prefix, log_exists=log_exists)
        assert ("If it uses this log, no transactions are left to end" in str(error)) == may_be_deleted


def test_fencing_that_a_driver_detects_is_reported_like_that_of_brokers() -> None:
    for error in (
        precommit_errors.build_other_driver_error("p-driver"),
        precommit_errors.build_hand_over_error("p-driver", "x"),
    ):
        assert isinstance(error, ProducerFencedError)
        assert "transactional id p-driver" in str(error)
