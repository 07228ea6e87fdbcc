"""docs/options.md and docs/security.md match the options and settings in the code."""

from __future__ import annotations

from spark_kafka_sink.spark.patches.drop_in import REDACTION_CONFS
from tools.options_document import DOCUMENT, render_document


def test_options_page_lists_exactly_the_options_of_the_code() -> None:
    document = DOCUMENT.read_text()
    assert document == render_document(document), "run `python -m tools.options_document` and read what it changed"


def test_security_page_has_redaction_settings_of_register() -> None:
    document = DOCUMENT.with_name("security.md").read_text()
    for setting, secrets in REDACTION_CONFS.items():
        assert f"`{setting}` | `{secrets.replace('|', chr(92) + '|')}`" in document
