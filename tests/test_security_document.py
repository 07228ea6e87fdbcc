"""The sink accepts the options in the recipes of the security pages, which have the effects in their headings."""

from __future__ import annotations

import re
import sys
from types import ModuleType

import pytest

from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from tests.documents import blocks

PAGES = ("docs/security.md", "docs/providers.md")
RECIPES = [block for page in PAGES for block in blocks(page) if "options = {" in block]
EXPECTED = [
    ("SSL", None),
    ("SSL", None),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "GSSAPI"),
    ("SASL_SSL", "OAUTHBEARER"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "OAUTHBEARER"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "OAUTHBEARER"),
    ("SASL_SSL", "OAUTHBEARER"),
    ("SASL_SSL", "OAUTHBEARER"),
]


def run_recipe(recipe: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in re.findall(r'os\.environ\["(\w+)"\]', recipe):
        monkeypatch.setenv(name, f"{name.lower()}:of-the-environment")
    names: dict[str, dict[str, str]] = {}
    exec(compile(recipe, "docs/security.md", "exec"), {}, names)
    return names["options"]


def test_covers_every_security_recipe() -> None:
    assert len(RECIPES) == len(EXPECTED)


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_sink_accepts_security_recipe(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", ModuleType("gssapi"))  # required by Kerberos, which tests do not have
    options = run_recipe(RECIPES[number], monkeypatch)
    parsed = parse_options(options | {"topic": "orders"})
    assert isinstance(parsed, SinkOptions)
    producer = {name[6:]: value for name, value in options.items() if name.startswith("kafka.")}
    security = ProducerConfig.parse(producer).security
    assert (security.protocol, security.login.mechanism if security.login else None) == EXPECTED[number]


def test_rejects_misspelled_option_in_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    options = run_recipe(RECIPES[2], monkeypatch)
    options["kafka.sasl.mechanizm"] = options.pop("kafka.sasl.mechanism")
    with pytest.raises(Exception, match=r"kafka\.sasl\.mechanism"):
        parse_options(options | {"topic": "orders"})
