"""docs/errors.md quotes messages that exist in the code, and lists all exceptions."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import pytest

from spark_kafka_sink import errors
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.errors import BrokerError, DecodeError, KafkaSinkError
from spark_kafka_sink.exactly_once import commit_errors, decision_errors, precommit_errors
from spark_kafka_sink.exactly_once.batch_summary import BatchSummary
from spark_kafka_sink.exactly_once.entries import Batch, Entry
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.producer.options import PRODUCER_OPTIONS
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import build_broker_error
from spark_kafka_sink.requests.transaction_description import ONGOING, TransactionDescription
from spark_kafka_sink.requests.transaction_identity import TransactionIdentity
from tools.error_document import MessageRow, find_explaining_rows, read_rows

OPTIONS = {*PRODUCER_OPTIONS, *SECURITY_OPTIONS}
ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "errors.md").read_text()
QUOTED = [row.message for row in read_rows()]
EXTERNAL_MESSAGES = {
    "ModuleNotFoundError: No module named 'spark_kafka_sink'",
    "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]",
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: pykafka",
    "[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST]",
    "Sink pykafka does not support async progress tracking",
    "Connection refused",
    "invalid credentials with SASL mechanism",
    "Invalid username or password",
}
"""Messages of Python, Spark, the operating system and brokers, which tests/spark/test_spark_errors_document.py and
integration/test_errors_document.py provoke."""


@cache
def read_code_strings() -> str:
    """Return all strings in the code, one per line."""
    nodes = (
        node for path in (ROOT / "spark_kafka_sink").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    )
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.mark.parametrize("sentence", [message for message in QUOTED if message not in EXTERNAL_MESSAGES])
def test_quoted_messages_exist_in_code(sentence: str) -> None:
    for piece in sentence.split("…"):
        option, _, text = piece.strip().partition(" ")
        # An OptionProblem stores its option name separately from its text.
        assert (text if option in OPTIONS else piece.strip()) in read_code_strings()


def test_finds_documented_message_in_program_output() -> None:
    row = MessageRow(0, "there … times; one of them", "rename it")
    assert row.explains("AnalysisException: 'a' is there 3\n times; one of them must go")
    assert not row.explains("one of them is there 3 times; both")


TASKS = tuple(TransactionIdentity(f"orders-1-{partition}-0", 4711, 12, 2) for partition in range(2))
CONTENT, OTHER_CONTENT, BATCH = (
    BatchSummary.from_row_counts({"t": 2}, 6),
    BatchSummary.from_row_counts({"t": 3}, 9),
    Batch("q", 0),
)
ENTRY = (
    Entry("orders", timeout_ms=60_000).with_claim("host/1", "/checkpoint", 60_000).with_decision(BATCH, CONTENT, TASKS)
)
OPEN = TransactionDescription("orders-1-0-0", ONGOING, ProducerIdAndEpoch(4711, 12), 60_000, 1)


def build_rejections(code: int) -> Mapping[str, BrokerError]:
    return {TASKS[0].transactional_id: build_broker_error(code, "the commit")}


DOCUMENTED_ERRORS: list[tuple[Callable[[], KafkaSinkError], str]] = [
    (partial(precommit_errors.build_start_error, "no response"), "Cannot write to Kafka exactly once"),
    (
        partial(
            precommit_errors.build_first_epoch_rejected_error,
            build_broker_error(error_codes.INVALID_PRODUCER_ID_MAPPING, "x"),
        ),
        "Cannot write to Kafka exactly once",
    ),
    (
        partial(precommit_errors.build_log_not_compacted_error, "pykafka-decisions", "delete"),
        "Cannot write to Kafka exactly once",
    ),
    (
        partial(
            precommit_errors.build_timeout_rejected_error,
            build_broker_error(error_codes.INVALID_TRANSACTION_TIMEOUT, "x"),
            is_user_timeout=True,
        ),
        "Cannot write to Kafka exactly once",
    ),
    (partial(precommit_errors.build_superseded_error, ENTRY, "me"), "newer driver has taken over"),
    (partial(precommit_errors.build_overtaken_error, ENTRY, "me"), "newer driver has taken over"),
    (partial(precommit_errors.build_concurrent_start_error, "orders", "me"), "Several drivers"),
    (
        partial(precommit_errors.build_replay_mismatch_error, ENTRY, BATCH, CONTENT, OTHER_CONTENT),
        "is already in Kafka",
    ),
    (
        partial(precommit_errors.build_unproven_decision_error, ENTRY, BATCH, CONTENT, CONTENT),
        "However, it is not known",
    ),
    (partial(precommit_errors.build_stale_batch_error, ENTRY, BATCH), "must not be written"),
    (partial(precommit_errors.build_query_mismatch_error, ENTRY, BATCH), "belongs to another query"),
    (partial(precommit_errors.build_writer_kind_mismatch_error, ENTRY), "belongs to … but this is"),
    (partial(precommit_errors.build_checkpoint_mismatch_error, ENTRY, "/other"), "is in use by a query"),
    (partial(precommit_errors.build_log_lost_error, "orders", "pykafka-decisions"), "has no entry for the prefix"),
    (partial(precommit_errors.build_log_records_deleted_error, "pykafka-decisions", 3), "records in partition"),
    (
        partial(precommit_errors.build_unreadable_entry_error, "offset 3", "orders", DecodeError("junk")),
        "the newest decision",
    ),
    (
        partial(precommit_errors.build_unknown_prefix_error, "pykafka-decisions", "orders", log_exists=True),
        "so it is not known",
    ),
    (partial(precommit_errors.build_late_attempt_error, "orders", "It wrote nothing."), "came too late"),
    (partial(decision_errors.build_transaction_deadline_error, ENTRY, OPEN, 5_000), "were left for"),
    (partial(decision_errors.build_transactions_not_open_error, ENTRY, ["orders-1-0-0"]), "are no longer open"),
    (partial(decision_errors.build_downgrade_error, ENTRY), "transaction.version was lowered"),
    (
        partial(decision_errors.build_decision_in_doubt_error, ENTRY, KafkaSinkError("no response.")),
        "It is not known whether",
    ),
    (
        partial(
            decision_errors.build_decision_in_doubt_error,
            ENTRY,
            precommit_errors.build_other_driver_error("orders-driver"),
        ),
        "newer driver has taken over",
    ),
    (
        partial(commit_errors.build_unfinished_commit_error, ENTRY, KafkaSinkError("no response."), {}),
        "it is not known whether all",
    ),
    (
        partial(commit_errors.build_superseded_commit_error, ENTRY, build_rejections(error_codes.PRODUCER_FENCED)),
        "newer driver has taken over",
    ),
    (
        partial(commit_errors.build_uncommitted_batch_error, ENTRY, build_rejections(error_codes.NOT_COORDINATOR)),
        "could not be committed yet",
    ),
    (
        partial(commit_errors.build_not_committed_error, ENTRY, build_rejections(error_codes.PRODUCER_FENCED)),
        "can no longer be committed",
    ),
    (
        partial(
            commit_errors.build_not_committed_error, ENTRY, build_rejections(error_codes.TRANSACTIONAL_ID_NOT_FOUND)
        ),
        "but the brokers no longer know",
    ),
]
FOUND_BY_KAFKAS_NAME = {
    "build_other_driver_error",
    "build_hand_over_error",
    "build_timeout_limit_error",
    "build_driver_timeout_error",
}


@pytest.mark.parametrize(("build_error", "sentence"), DOCUMENTED_ERRORS)
def test_exactly_once_errors_have_rows(build_error: Callable[[], KafkaSinkError], sentence: str) -> None:
    rows = find_explaining_rows(str(build_error()))
    assert [row.message for row in rows if row.message.startswith(sentence)]
    assert len(rows) <= 2  # more rows would confuse readers


def test_every_exactly_once_rejection_is_tested() -> None:
    names = {
        name
        for module in (precommit_errors, decision_errors, commit_errors)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and not name.startswith("_")
        and str(function.__annotations__["return"]) in vars(errors)
    }
    documented_functions = {
        build_error.func.__name__ for build_error, _ in DOCUMENTED_ERRORS if isinstance(build_error, partial)
    }
    assert names == documented_functions | FOUND_BY_KAFKAS_NAME


def test_documents_every_exception() -> None:
    public = {
        name
        for name, made in inspect.getmembers(errors, inspect.isclass)
        if issubclass(made, errors.KafkaSinkError) and made.__module__ == errors.__name__
    }
    named = set(re.findall(r"`([A-Z]\w+Error)`", PAGE))
    assert named <= public | {"KafkaSinkError"}
    assert sorted(public - named - {"KafkaSinkError"}) == []
