"""`pykafka transactions`: list, finish, abort or give up the open and decided transactions of exactly-once writes.

Listing changes nothing. The other actions first print the transactions that they affect and ask for confirmation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, check_topics_readable, parse_client_options
from spark_kafka_sink.cli.tables import print_table
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.exactly_once.entries import Batch
    from spark_kafka_sink.exactly_once.operations import AbortResult, FinishResult, PrefixStatus

COMMAND_HELP = "list the transactions of exactly-once writes, or finish, abort or give up those of one prefix"

LIST, FINISH, ABORT, GIVE_UP = "list", "finish", "abort", "give-up"
_UNPROVEN_SUFFIX = ", by an unknown id"
_BATCH_FAILS_MESSAGE = (
    "If a running query with this prefix is writing a batch, it fails at the commit, and continues after a restart."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    parser.add_argument(
        "action",
        nargs="?",
        choices=(LIST, FINISH, ABORT, GIVE_UP),
        default=LIST,
        help="list: show open transactions and last decisions; finish: commit the transactions of a batch that was "
        "decided (recorded in the decision log to be committed); abort: abort the open transactions of undecided "
        "batches; give-up: commit the decided transactions that still can be, and record the batch as done although "
        "the rows of the others may be lost (default: %(default)s)",
    )
    parser.add_argument(
        "--prefix",
        metavar="PREFIX",
        help="prefix of the transactional ids of one query or job; required unless the action is list",
    )
    parser.add_argument(
        "--log-topic", metavar="TOPIC", help="topic of the decision log; needed if the write set decisionLogTopic"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.add_argument("--json", action="store_true", help="print the list as one JSON document")


def run(args: argparse.Namespace) -> int:
    from spark_kafka_sink.exactly_once import operations, precommit_errors
    from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix
    from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC
    from spark_kafka_sink.producer.config import ProducerConfig

    if args.action != LIST and not args.prefix:
        raise ConfigurationError(f"{args.action} requires --prefix")
    options = {name: str(value) for name, value in parse_client_options(args).items()}
    check_topics_readable(ProducerConfig.parse(options).client_config())
    topic = args.log_topic or DECISION_LOG_TOPIC
    statuses = operations.list_prefixes(options, topic, args.prefix)
    if args.action == LIST:
        _print_prefix_list(statuses, as_json=args.json)
        return 0
    (status,) = statuses  # `list_prefixes` returns exactly one status for a prefix
    if status.entry is None:
        raise precommit_errors.build_unknown_prefix_error(topic, status.prefix, log_exists=status.log_exists)
    if args.action == ABORT:
        operations.check_not_decided(status.entry)
    affected_ids = _list_affected_ids(status, args.action)
    # An entry of a job without a name can only be deleted with abort, because no later job uses the prefix.
    deletes_entry = args.action == ABORT and is_generated_job_prefix(status.prefix)
    if not affected_ids and not deletes_entry:
        _print_nothing_to_do(status, args.action)
        return 0
    print(_describe_action(status, args.action, affected_ids))
    if not args.yes and not _ask_for_confirmation():
        print("Nothing was done.")
        return 1
    return _run_action(args.action, options, status.prefix, topic)


def _print_nothing_to_do(status: PrefixStatus, action: str) -> None:
    """Print that an action has no effect, the prefix's state, and the action that does have an effect, if any."""
    from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix

    print(
        f"There is nothing to {action.replace('-', ' ')} under the prefix {status.prefix}. Last decision: "
        f"{_format_decision(status)}. Newest driver: {_describe_owner(status)}."
    )
    if status.undecided_transactions:
        print(
            f"Open transactions of its tasks that are not decided: {len(status.undecided_transactions)}. If no query "
            "or job with this prefix is running, end them with abort."
        )
    elif is_generated_job_prefix(status.prefix):
        print("If the job is not running, delete its entry from the decision log with abort.")


def _list_affected_ids(status: PrefixStatus, action: str) -> Sequence[str]:
    """Return the affected transactional ids: those of undecided transactions for ABORT, else of decided ones."""
    if action == ABORT:
        return [transaction.transactional_id for transaction in status.undecided_transactions]
    return status.decided_ids


def _describe_action(status: PrefixStatus, action: str, affected_ids: Sequence[str]) -> str:
    """Describe an action before it is confirmed: its effect, the affected transactions and the consequences."""
    from spark_kafka_sink.exactly_once import precommit_errors

    batch = "" if status.entry is None else f" of {status.entry.batch}"
    effects = {
        FINISH: f"This commits the decided transactions{batch} and marks the decision as done:",
        ABORT: "This aborts these open transactions. Readers with read_committed will never see their records:"
        if affected_ids
        else "No transaction of the job is open. This deletes the job's entry from the decision log.",
        GIVE_UP: f"This commits the decided transactions{batch} that can still be committed and marks the decision as "
        "done. The rows of the other transactions are LOST, unless they were committed before:",
    }
    consequences = _BATCH_FAILS_MESSAGE
    if status.entry is not None and action != ABORT:
        consequences = precommit_errors.join_sentences(
            consequences, precommit_errors.describe_unknown_writer(status.entry)
        )
    lines = [effects[action], *(f"  {transactional_id}" for transactional_id in affected_ids)]
    if action != ABORT and status.undecided_transactions:
        lines.append("Then it aborts these open transactions, which are not decided:")
        lines += [f"  {transaction.transactional_id}" for transaction in status.undecided_transactions]
    return "\n".join([*lines, consequences])


def _ask_for_confirmation() -> bool:
    """Return whether the user confirms the action. Anything except an explicit yes means no."""
    sys.stdout.write("Continue? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _run_action(action: str, options: dict[str, str], prefix: str, topic: str) -> int:
    """Run an action that changes transactions, print its result and return the exit status."""
    from spark_kafka_sink.exactly_once import operations
    from spark_kafka_sink.exactly_once.job_names import is_generated_job_prefix

    if action == ABORT:
        abort_result = operations.abort(options, prefix, topic)
        if not abort_result.aborted_ids and not abort_result.errors_by_id:
            print("Aborted: nothing, because no transactions are open.")
        status = _print_abort_result(abort_result)
        if abort_result.done_batch is not None:
            may_have_aborted_other_job = bool(abort_result.aborted_ids) and not is_generated_job_prefix(prefix)
            print(_describe_done_batch(abort_result.done_batch, may_have_aborted_other_job=may_have_aborted_other_job))
        return status
    complete_transactions = operations.finish if action == FINISH else operations.give_up
    return _print_finish_result(complete_transactions(options, prefix, topic), prefix, action)


def _describe_done_batch(batch: Batch, *, may_have_aborted_other_job: bool) -> str:
    """Say that an abort did not affect the last batch that is done, and whether to run any job again.

    `may_have_aborted_other_job`: whether the aborted transactions may belong to another job. Otherwise, they belong to
    superseded task attempts of this one.
    """
    text = f"Done before: {batch}, which is committed or was given up."
    if batch.is_idempotent:
        return text
    text = f"{text} Do not run {batch} again, because it has no idempotencyKey."
    if not may_have_aborted_other_job:
        return text
    return (
        f"{text} Any other job whose transactions were aborted may be run again, unless another run of it is "
        f"committed, such as {batch} if a scheduler has retried it."
    )


def _print_finish_result(finish_result: FinishResult | None, prefix: str, action: str) -> int:
    """Print the result and return the exit status: 1 if rows may be lost or an abort was rejected, and 0 if not."""
    from spark_kafka_sink.exactly_once.commit_errors import (
        FORGOTTEN_IDS_REASON,
        MISSING_ROWS_REMEDY,
        is_id_forgotten,
    )

    if finish_result is None:
        print(
            f"There are no longer any decided transactions with the prefix {prefix}: another process has finished "
            "them, or has given up on those that were lost."
        )
        return 0
    print(f"Committed: {', '.join(finish_result.committed_ids) or 'nothing'}.")
    abort_status = _print_abort_result(finish_result.abort_result)
    rejections = finish_result.lost_transaction_errors
    forgotten_ids = [transactional_id for transactional_id, error in rejections.items() if is_id_forgotten(error)]
    for transactional_id in sorted(rejections.keys() - set(forgotten_ids)):
        print(f"Lost: {transactional_id}: {rejections[transactional_id].name}")
    for transactional_id in forgotten_ids:
        print(f"May be lost: {transactional_id}: {rejections[transactional_id].name}")
    if forgotten_ids:
        print(f"{FORGOTTEN_IDS_REASON}.")
    if rejections and action == FINISH:
        verb = "may be" if len(forgotten_ids) == len(rejections) else "are"
        print(
            "The decision was not marked as done, and transactions of other attempts were not ended, because rows "
            f"{verb} missing from the topic. To do both anyway, run give-up."
        )
    if rejections:
        print(MISSING_ROWS_REMEDY)
    return 1 if rejections else abort_status


def _print_abort_result(abort_result: AbortResult) -> int:
    """Print the result and return the exit status: 1 if an abort was rejected, and 0 if not."""
    if abort_result.aborted_ids:
        print(f"Aborted: {', '.join(abort_result.aborted_ids)}.")
    for transactional_id, error in abort_result.errors_by_id.items():
        print(f"Not ended: {transactional_id}: {error}")
    if not abort_result.errors_by_id:
        return 0
    print(
        "Brokers rejected requests to end these transactions, or to prevent new ones under these transactional ids. "
        "Fix the cause, and run abort."
    )
    return 1


def _print_prefix_list(statuses: Sequence[PrefixStatus], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_status_to_json(status) for status in statuses]))
        return
    rows = [row for status in statuses for row in _build_table_rows(status)]
    if rows:
        print_table(("prefix", "driver", "last decision", "open transaction", "since (UTC)", "partitions"), rows)
    else:
        print(
            "There are no decisions in this log, and no open transactions with a prefix that the sink has generated. "
            "If the writes set decisionLogTopic, add --log-topic. To list the open transactions of one prefix, add "
            "--prefix."
        )


def _format_decision(status: PrefixStatus) -> str:
    entry = status.entry
    if entry is None:
        return "not in this log"
    if entry.last_decided_batch is None:
        return "none"
    suffix = _UNPROVEN_SUFFIX if entry.is_unproven else ""
    return f"{entry.last_decided_batch}: {entry.state.value}{suffix}"


def _describe_owner(status: PrefixStatus) -> str:
    """Return the host and start of the prefix's newest driver, or describe the job if the prefix was generated."""
    from spark_kafka_sink.exactly_once.job_names import describe_job

    return describe_job(status.prefix) or ("" if status.entry is None else status.entry.driver_name)


def _build_table_rows(status: PrefixStatus) -> list[tuple[object, ...]]:
    """Return a row for each open transaction. If none is open, return one row without a transaction."""
    if not status.open_transactions:
        return [(status.prefix, _describe_owner(status), _format_decision(status), "", "", "")]
    return [
        (
            status.prefix,
            _describe_owner(status),
            _format_decision(status),
            transaction.transactional_id,
            _format_utc(transaction.started_ms),
            ", ".join(f"{topic}-{partition}" for topic, partition in transaction.partitions),
        )
        for transaction in status.open_transactions
    ]


def _format_utc(time_ms: int) -> str:
    """Format milliseconds since 1970, or return "" for a negative number, which stands for an unknown time."""
    if time_ms < 0:
        return ""
    return f"{datetime.fromtimestamp(time_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}"


def _status_to_json(status: PrefixStatus) -> dict[str, object]:
    """Build an element of the list that `--json` prints. Scripts depend on the names of its fields."""
    entry = status.entry
    last_decided_batch = None if entry is None else entry.last_decided_batch
    return {
        "prefix": status.prefix,
        "driver": _describe_owner(status),
        "state": None if entry is None else entry.state.value,
        "unproven": entry is not None and last_decided_batch is not None and entry.is_unproven,
        "batch": None if last_decided_batch is None else str(last_decided_batch),
        "decided": list(status.decided_ids),
        "open": [
            {
                "transactional_id": transaction.transactional_id,
                "started_ms": transaction.started_ms,
                "timeout_ms": transaction.timeout_ms,
                "partitions": [list(partition) for partition in transaction.partitions],
            }
            for transaction in status.open_transactions
        ],
    }
