"""Generator and reader of the tables of docs/errors.md.

`python -m tools.error_document` regenerates the table of Kafka's error codes. The tables of messages are written by
hand. This module reads them, so that tests can look up messages.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from spark_kafka_sink.producer.sending.outcome import BatchFacts, Done, Fail, Retry, Split, decide_outcome
from spark_kafka_sink.protocol.error_codes import ERROR_CODES, ErrorCode

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
ORDINARY_BATCH = BatchFacts(
    record_count=100,
    failed_attempts=0,
    max_retries=10,
    is_expired=False,
    has_sequence=True,
    is_head=True,
    is_in_doubt=False,
)
IRRELEVANT_CODES = {22, 25, 30, 61, 62, 66, 82, 88, 104}
"""Errors of consumer groups, delegation token requests and cluster comparisons, which a sink never receives."""
MESSAGES_SECTION = ("<!-- sentences -->\n", "<!-- end of sentences -->\n")
TABLE_BEGIN, TABLE_END = "<!-- table -->\n", "<!-- end of table -->\n"


class MessageRow(NamedTuple):
    """A row of the tables of messages.

    `position`: the number of rows before it on the page.
    """

    position: int
    message: str
    advice: str

    def explains(self, text: str) -> bool:
        """Return whether a text contains the message of this row. An ellipsis in the message matches any text."""
        pieces = (re.escape(" ".join(piece.split())) for piece in self.message.split("…"))
        return re.search(".*?".join(pieces), " ".join(text.split())) is not None


def read_rows() -> list[MessageRow]:
    """Return the rows of the tables of messages, in the order of the page."""
    text = DOCUMENT.read_text().split(MESSAGES_SECTION[0])[1].split(MESSAGES_SECTION[1])[0]
    cells = re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.MULTILINE)
    return [MessageRow(position, message, advice) for position, (message, advice) in enumerate(cells)]


def find_explaining_rows(text: str) -> list[MessageRow]:
    """Return the rows whose messages occur in a text."""
    return [row for row in read_rows() if row.explains(text)]


def format_table() -> str:
    """Format the table of the error codes that a producer can receive."""
    error_codes = [
        error_code
        for code, error_code in sorted(ERROR_CODES.items())
        if error_code.advice and code not in IRRELEVANT_CODES
    ]
    lines = ["| Code | Name | The producer | Cause and remedy |", "|---:|---|---|---|"]
    lines += [
        f"| {error_code.code} | `{error_code.name}` | {_describe_reaction(error_code)} | {error_code.advice} |"
        for error_code in error_codes
    ]
    return "\n".join(lines) + "\n"


def _describe_reaction(error_code: ErrorCode) -> str:
    """Describe what an idempotent producer does if a Produce response contains this error.

    The batch was sent for the first time. In other responses, the error may have other consequences.
    """
    outcome = decide_outcome(ORDINARY_BATCH._replace(is_in_doubt=error_code.in_doubt), error_code.code)
    match outcome:
        case Done():
            return "treats the records as written"
        case Split():
            return "splits the batch and sends the parts; a single record fails"
        case Retry(needs_new_sequence=True):
            return "retries under a new epoch"
        case Retry():
            retry_text = "looks up the leader and retries" if error_code.requires_metadata_refresh else "retries"
            return f"{retry_text}; the records may be stored already" if error_code.in_doubt else retry_text
        case Fail(fatal=True):
            return "fails permanently"
    return "fails the records, which may be stored" if error_code.in_doubt else "fails the records"


def render_document() -> str:
    """Return the document with a regenerated table."""
    head, _, remaining_text = DOCUMENT.read_text().partition(TABLE_BEGIN)
    tail = remaining_text.partition(TABLE_END)[2]
    return head + TABLE_BEGIN + format_table() + TABLE_END + tail


if __name__ == "__main__":
    DOCUMENT.write_text(render_document())
