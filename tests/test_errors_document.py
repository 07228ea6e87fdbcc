"""docs/errors.md quotes sentences that the code says, and names all exceptions there are."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

from spark_kafka_sink import errors
from tests.error_document import Row, sentences

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "errors.md").read_text()
QUOTED = [row.sentence for row in sentences()]
OF_OTHERS = {
    "No module named 'spark_kafka_sink'",
    "[UNSUPPORTED_DATA_SOURCE_SAVE_MODE]",
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: pykafka",
    "[STREAMING_REAL_TIME_MODE.OPERATOR_OR_SINK_NOT_IN_ALLOWLIST]",
    "Sink pykafka does not support async progress tracking",
    "Connection refused",
    "invalid credentials with SASL mechanism",
    "Invalid username or password",
}
"""Said by Python, Spark, the operating system and brokers: tests/spark/test_spark_errors_document.py and
integration/test_errors_document.py have them say it."""


@cache
def said() -> str:
    """All text in the code, with a line for each piece."""
    nodes = (
        node for path in (ROOT / "spark_kafka_sink").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    )
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.mark.parametrize("sentence", [one for one in QUOTED if one not in OF_OTHERS])
def test_a_sentence_that_is_quoted_is_said_by_the_code(sentence: str) -> None:
    for piece in sentence.split("…"):
        assert piece.strip() in said()


def test_a_sentence_is_looked_up_in_what_a_program_has_said() -> None:
    row = Row(0, "there … times; one of them", "rename it")
    assert row.explains("AnalysisException: 'a' is there 3\n times; one of them must go")
    assert not row.explains("one of them is there 3 times; both")


def test_many_sentences_are_quoted() -> None:
    assert len(QUOTED) > 25


def test_every_exception_is_explained() -> None:
    public = {
        name
        for name, made in inspect.getmembers(errors, inspect.isclass)
        if issubclass(made, errors.KafkaSinkError) and made.__module__ == errors.__name__
    }
    named = set(re.findall(r"`([A-Z]\w+Error)`", PAGE))
    assert named <= public | {"KafkaSinkError"}
    assert sorted(public - named - {"KafkaSinkError"}) == []
