"""docs/options.md says what the code does."""

from __future__ import annotations

from tests.spark.options_document import DOCUMENT, written


def test_the_document_lists_exactly_the_options_of_the_code() -> None:
    document = DOCUMENT.read_text()
    assert document == written(document), "run `python -m tests.spark.options_document` and read what it changed"
