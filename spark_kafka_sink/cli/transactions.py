"""`pykafka transactions`: what exactly-once writes have open and decided; finish, abort, or give up.

Looking changes nothing. All else is first said, with the transactions that it concerns, and asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from spark_kafka_sink.cli.client_options import add_connection_arguments, given_options, reach
from spark_kafka_sink.cli.tables import print_table
from spark_kafka_sink.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_kafka_sink.exactly_once.operations import Finished, PrefixSurvey

HELP = "list the transactions of exactly-once writes; finish, abort or give up those of one prefix"

LIST, FINISH, ABORT, GIVE_UP = "list", "finish", "abort", "give-up"
_UNPROVEN = ", by an unknown id"
_STOPS = "A query that runs under this prefix fails at its next commit, and goes on when it is started again."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_connection_arguments(parser)
    add = parser.add_argument
    add(
        "action",
        nargs="?",
        choices=(LIST, FINISH, ABORT, GIVE_UP),
        default=LIST,
        help="finish: commit what is decided; abort: end what is not decided; give-up: of what is decided, commit what "
        "still can be, and note it as done (default: %(default)s)",
    )
    add(
        "--prefix",
        metavar="PREFIX",
        help="prefix of the transactional ids of one query or job; needed for all but list",
    )
    add("--log-topic", metavar="TOPIC", help="the decision log, if the write has one of its own")
    add("--yes", action="store_true", help="do not ask")
    add("--json", action="store_true", help="print the list as one JSON document")


def run(chosen: argparse.Namespace) -> int:
    from spark_kafka_sink.exactly_once import operations, refusals
    from spark_kafka_sink.exactly_once.transaction_names import DECISION_LOG_TOPIC
    from spark_kafka_sink.producer.config import ProducerConfig

    if chosen.action != LIST and not chosen.prefix:
        raise ConfigurationError(f"{chosen.action} is for one prefix: name it by --prefix")
    options = {name: str(value) for name, value in given_options(chosen).items()}
    reach(ProducerConfig.parse(options).client_config())
    topic = chosen.log_topic or DECISION_LOG_TOPIC
    found = operations.survey(options, topic, chosen.prefix)
    if chosen.action == LIST:
        _list(found, as_json=chosen.json)
        return 0
    (survey,) = found
    if survey.entry is None:
        raise refusals.unknown_prefix(topic, survey.prefix, exists=survey.log_exists)
    concerned = _concerned(survey, chosen.action)
    if not concerned:
        print(f"There is nothing to {chosen.action.replace('-', ' ')} under the prefix {survey.prefix}.")
        return 0
    print(_announcement(survey, chosen.action, concerned))
    if not chosen.yes and not _is_wanted():
        print("Nothing was done.")
        return 1
    if chosen.action == ABORT:
        aborted = operations.abort(options, survey.prefix, topic)
        print(f"Aborted: {', '.join(each.transactional_id for each in aborted) or 'nothing, none was open any more'}.")
        return 0
    do = operations.finish if chosen.action == FINISH else operations.give_up
    return _say_finished(do(options, survey.prefix, topic), survey.prefix, chosen.action)


def _concerned(survey: PrefixSurvey, action: str) -> Sequence[str]:
    return [each.transactional_id for each in survey.undecided] if action == ABORT else survey.decided


def _announcement(survey: PrefixSurvey, action: str, concerned: Sequence[str]) -> str:
    from spark_kafka_sink.exactly_once import refusals

    batch = "" if survey.entry is None else f" of {survey.entry.batch}"
    does = {
        FINISH: f"This commits what is decided{batch}, and notes that it is done:",
        ABORT: "This aborts these open transactions; their records are never seen by read_committed readers:",
        GIVE_UP: f"This commits what can still be committed{batch} and notes that it is done. What cannot is LOST:",
    }
    doubt = "" if survey.entry is None or action == ABORT else refusals.doubt(survey.entry)
    return "\n".join([does[action], *(f"  {name}" for name in concerned), _STOPS + doubt])


def _is_wanted() -> bool:
    """Only an explicit yes; without a terminal, or at the end of the input, it is no."""
    sys.stdout.write("Go on? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say_finished(finished: Finished | None, prefix: str, action: str) -> int:
    if finished is None:
        print(f"Nothing is decided under the prefix {prefix} any more: it was finished meanwhile.")
        return 0
    print(f"Committed: {', '.join(finished.committed) or 'nothing'}.")
    for name, error in finished.lost.items():
        print(f"Lost: {name}: {error}")
    if finished.lost and action == FINISH:
        print("Nothing was noted: what is lost is not in the topic. If you accept that, give it up.")
    return 1 if finished.lost else 0


def _list(found: Sequence[PrefixSurvey], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([_as_json(survey) for survey in found]))
        return
    rows = [row for survey in found for row in _rows(survey)]
    if rows:
        print_table(("prefix", "driver", "last decision", "open transaction", "since (UTC)", "partitions"), rows)
    else:
        print("No exactly-once write has anything open, or was ever decided here.")


def _decision(survey: PrefixSurvey) -> str:
    entry = survey.entry
    if entry is None:
        return "not in this log"
    if entry.last_decided is None:
        return "none"
    return f"{entry.last_decided}: {entry.state.value}" + (_UNPROVEN if entry.unproven else "")


def _owner(survey: PrefixSurvey) -> str:
    """Who writes under the prefix: the newest driver's host and start, or whose job without a name it is."""
    from spark_kafka_sink.exactly_once.job_names import job_description

    return job_description(survey.prefix) or ("" if survey.entry is None else survey.entry.driver)


def _rows(survey: PrefixSurvey) -> list[tuple[object, ...]]:
    """A row for each open transaction; one without any for a prefix that has none."""
    if not survey.open:
        return [(survey.prefix, _owner(survey), _decision(survey), "", "", "")]
    return [
        (
            survey.prefix,
            _owner(survey),
            _decision(survey),
            each.transactional_id,
            _utc(each.started_ms),
            ", ".join(f"{topic}-{partition}" for topic, partition in each.partitions),
        )
        for each in survey.open
    ]


def _utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}" if time_ms >= 0 else ""


def _as_json(survey: PrefixSurvey) -> dict[str, object]:
    return {
        "prefix": survey.prefix,
        "driver": _owner(survey),
        "state": None if survey.entry is None else survey.entry.state.value,
        "unproven": survey.entry is not None and survey.entry.last_decided is not None and survey.entry.unproven,
        "batch": None if survey.entry is None or survey.entry.last_decided is None else str(survey.entry.last_decided),
        "decided": list(survey.decided),
        "open": [
            {
                "transactional_id": each.transactional_id,
                "started_ms": each.started_ms,
                "timeout_ms": each.timeout_ms,
                "partitions": [list(partition) for partition in each.partitions],
            }
            for each in survey.open
        ],
    }
