"""docs/options.md says what the code does."""

from __future__ import annotations

from spark_kafka_sink.spark.patches.drop_in import REDACTION_CONFS
from tools.options_document import DOCUMENT, written


def test_the_document_lists_exactly_the_options_of_the_code() -> None:
    document = DOCUMENT.read_text()
    assert document == written(document), "run `python -m tools.options_document` and read what it changed"


def test_what_register_hides_stands_in_the_document() -> None:
    document = DOCUMENT.read_text()
    for setting, secrets in REDACTION_CONFS.items():
        assert f"`{setting}` | `{secrets.replace('|', chr(92) + '|')}`" in document
