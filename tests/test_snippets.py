"""Code blocks in the documents: a test runs each of them unchanged, except for addresses.

This module runs those that need neither Spark nor a cluster. RUN_BY lists the tests of the others.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

from integration.support.kafka_cluster import KafkaCluster
from spark_kafka_sink.reports.write_report import parse_report
from spark_kafka_sink.sasl.oauthbearer import OauthBearerClient, decode_token_claims, decode_token_header
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker
from tests.documents import ROOT, blocks, languages, pages

HERE = "tests/test_snippets.py"
WITH_SPARK = "tests/spark/scenarios/test_documented_examples.py"
COMMANDS = "tests/test_commands_in_documents.py"
RUN_BY: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("README.md", "python"): (WITH_SPARK,),
    ("docs/deploying.md", "python"): (WITH_SPARK, "tests/spark/scenarios/test_connect.py"),
    ("docs/test-infrastructure.md", "python"): (HERE,),
    ("docs/testing-exactly-once.md", "python"): (HERE,),
    ("docs/exactly-once.md", "python"): (WITH_SPARK,),
    ("docs/agents.md", "python"): (WITH_SPARK,),
    ("docs/batch.md", "python"): (WITH_SPARK, "tests/spark/scenarios/test_tables.py"),
    ("docs/batch.md", "sql"): ("tests/spark/scenarios/test_tables.py",),
    ("docs/cli.md", "json"): ("tests/cli/test_verifiable_producer.py",),
    ("docs/cli.md", "properties"): ("tests/cli/scenarios/test_documented_commands.py",),
    ("docs/formats.md", "python"): (HERE, WITH_SPARK),
    ("docs/index.md", "python"): (WITH_SPARK,),
    ("docs/migrating.md", "diff"): (WITH_SPARK,),
    ("docs/monitoring.md", "python"): ("tests/test_monitoring_document.py", "tests/spark/test_progress.py"),
    ("docs/pipelines.md", "python"): ("tests/spark/scenarios/test_pipelines.py",),
    ("docs/pipelines.md", "yaml"): ("tests/spark/scenarios/test_pipelines.py",),
    ("docs/platforms.md", "properties"): ("tests/test_deploying_document.py",),
    ("docs/producer.md", "python"): (HERE, "tests/producer/scenarios/test_interpreter_exit.py"),
    ("docs/providers.md", "python"): (HERE, "tests/test_security_document.py"),
    ("docs/quickstart.md", "python"): (WITH_SPARK,),
    ("docs/registry.md", "python"): (HERE,),
    ("docs/reports.md", "json"): (HERE,),
    ("docs/security.md", "python"): (HERE, "tests/test_security_document.py"),
    ("docs/streams.md", "python"): (WITH_SPARK,),
    ("docs/tables.md", "python"): (HERE,),
    ("docs/testing.md", "python"): (WITH_SPARK,),
    ("docs/testing-faults.md", "python"): (WITH_SPARK,),
}
"""(page, language) -> tests that run its blocks. COMMANDS has the shell commands of all pages."""
NOT_RUN = {"text", "mermaid"}
"""Languages that are not run: output of programs, and diagrams (tests/test_site.py checks their types)."""
PRODUCER_EXAMPLES = {
    f"{page}, example {number}": block
    for page in ("docs/producer.md", "docs/tables.md")
    for number, block in enumerate(blocks(page), 1)
    if "SIGTERM" not in block
}
"""All examples except the one that a signal ends, which tests/producer/scenarios/test_interpreter_exit.py runs."""
FORMAT_EXAMPLES = [*blocks("docs/formats.md"), *blocks("docs/registry.md")]
ADDRESS = "localhost:9092"


def test_every_code_block_is_tested() -> None:
    found = {(page, language) for page in pages() for language in languages(page) - NOT_RUN - {"sh"}}
    assert found == set(RUN_BY)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.mark.parametrize("name", PRODUCER_EXAMPLES)
def test_producer_example_runs(broker: EmbeddedBroker, name: str) -> None:
    run_example(broker, name)


def run_example(broker: EmbeddedBroker, name: str) -> None:
    code = PRODUCER_EXAMPLES[name].replace(ADDRESS, broker.bootstrap_servers)
    exec(compile(code, name, "exec"), {"__name__": "example"})


def test_producer_examples_write_their_records() -> None:
    with embedded_broker(auto_create_topics=True) as broker:
        for name in PRODUCER_EXAMPLES:
            run_example(broker, name)
        assert {b"hello", b"hallo"} <= set(broker.topic("greetings").read().column("value").to_pylist())
        assert broker.topic("accounts").read().column("value").to_pylist() == [b"-100", b"+100"]
        assert broker.topic("orders").read().num_rows > 11_000


class RecordedWriter:
    """Stands in for a DataFrame and its writer, and records the options and the number of saves."""

    def __init__(self) -> None:
        self.options_set: dict[str, str] = {}
        self.saved = 0

    @property
    def write(self) -> RecordedWriter:
        return self

    def format(self, name: str) -> RecordedWriter:
        assert name == "pykafka"
        return self

    def option(self, name: str, value: str) -> RecordedWriter:
        return self.options(**{name: value})

    def options(self, **options: str) -> RecordedWriter:
        self.options_set |= options
        return self

    def save(self) -> None:
        self.saved += 1


@pytest.mark.parametrize("code", FORMAT_EXAMPLES, ids=["formats", "registry"])
def test_sink_accepts_options_of_format_examples(code: str) -> None:
    orders = RecordedWriter()
    exec(compile(code, "formats.md", "exec"), {"orders": orders})
    assert orders.saved == 1
    assert parse_options(orders.options_set).formats


def test_common_write_of_security_recipes() -> None:
    orders = RecordedWriter()
    exec(compile(blocks("docs/security.md")[0], "security.md", "exec"), {"orders": orders, "options": {"kafka.a": "b"}})
    assert (orders.saved, orders.options_set) == (1, {"kafka.a": "b", "topic": "orders"})


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: object) -> ModuleType:
    """Install a fake module for a library that is not installed."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        package = ".".join(parts[:end])
        if end == len(parts) or package not in sys.modules:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for attribute, value in attributes.items():
        monkeypatch.setattr(sys.modules[name], attribute, value, raising=False)
    return sys.modules[name]


def create_token(recipe: str) -> str:
    (module,) = (block for block in blocks("docs/providers.md") if f"# {recipe}.py" in block)
    names: dict[str, object] = {"__name__": recipe}
    exec(compile(module, f"{recipe}.py", "exec"), names)
    token = names["token"]
    assert callable(token)
    found = token()
    assert isinstance(found, str)
    return found


def test_entra_function_returns_token(monkeypatch: pytest.MonkeyPatch) -> None:
    class Credential:
        def get_token(self, scope: str) -> SimpleNamespace:
            return SimpleNamespace(token=f"for {scope}", expires_on=0)

    stand_in(monkeypatch, "azure.identity", DefaultAzureCredential=Credential)
    assert create_token("entra_tokens") == "for https://my-namespace.servicebus.windows.net/.default"


def test_google_function_returns_token_in_google_format(monkeypatch: pytest.MonkeyPatch) -> None:
    class Credentials:
        valid = False
        token = "ya29"
        service_account_email = "job@project"
        expiry = datetime(2026, 1, 2)

        def refresh(self, request: object) -> None:
            self.valid = True

    made = Credentials()
    auth = stand_in(monkeypatch, "google.auth", default=lambda scopes: (made, "project"))
    stand_in(monkeypatch, "google.auth.transport.requests", Request=object)
    monkeypatch.setattr(sys.modules.get("google") or ModuleType("google"), "auth", auth, raising=False)
    token = create_token("google_tokens")
    assert made.valid
    assert decode_token_header(token)["alg"] == "GOOG_OAUTH2_TOKEN"
    claims = decode_token_claims(token)
    assert (claims["sub"], claims["exp"]) == ("job@project", 1_767_312_000.0)
    OauthBearerClient(token)  # validates the token's format


def test_databricks_function_uses_service_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    class Signer:
        @staticmethod
        def generate_auth_token_from_credentials_provider(region: str, provider: Any) -> tuple[str, int]:
            return f"{provider.load()} in {region}", 900_000

    def credentials(name: str) -> SimpleNamespace:
        return SimpleNamespace(get_credentials=lambda: f"of {name}")

    stand_in(monkeypatch, "aws_msk_iam_sasl_signer", MSKAuthTokenProvider=Signer)
    stand_in(monkeypatch, "botocore.credentials", CredentialProvider=object)
    stand_in(monkeypatch, "databricks.service_credentials", getServiceCredentialsProvider=credentials)
    assert create_token("databricks_tokens") == "of orders-to-msk in eu-west-1"
    monkeypatch.setitem(sys.modules, "databricks.service_credentials", None)
    on_the_driver = SimpleNamespace(credentials=SimpleNamespace(getServiceCredentialsProvider=credentials))
    stand_in(monkeypatch, "databricks.sdk.runtime", dbutils=on_the_driver)
    assert create_token("databricks_tokens") == "of orders-to-msk in eu-west-1"


def test_msk_function_returns_signed_token(monkeypatch: pytest.MonkeyPatch) -> None:
    class Signer:
        @staticmethod
        def generate_auth_token(region: str) -> tuple[str, int]:
            return f"signed in {region}", 900_000

    stand_in(monkeypatch, "aws_msk_iam_sasl_signer", MSKAuthTokenProvider=Signer)
    assert create_token("msk_tokens") == "signed in eu-west-1"


def test_documented_json_report_matches_sink() -> None:
    (text,) = blocks("docs/reports.md", "json")
    assert json.loads(parse_report(text).to_json()) == json.loads(text)


def test_report_fields_are_documented() -> None:
    (example,) = blocks("docs/reports.md", "json")
    table = (ROOT / "docs" / "reports.md").read_text().split("| Field | Meaning |", 1)[1].split("\n\n", 1)[0]
    documented = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert sorted(documented) == sorted(json.loads(example))


def test_simulated_cluster_example_uses_existing_methods(tmp_path: Path) -> None:
    made = create_autospec(KafkaCluster)
    made.return_value.__enter__.return_value = made.return_value
    example = next(block for block in blocks("docs/test-infrastructure.md") if "KafkaCluster" in block)
    exec(compile(example, "test-infrastructure.md", "exec"), {"KafkaCluster": made, "folder": tmp_path})
    assert made.return_value.restart.call_count == 1


def test_driver_shutdown_example_works(tmp_path: Path) -> None:
    """integration/test_exactly_once_killed.py stops drivers like this."""
    looked: list[bool] = []
    driver = create_autospec(Popen)
    example = next(block for block in blocks("docs/testing-exactly-once.md") if "stop after decide" in block)
    names = {"folder": tmp_path, "wait_until": lambda stopped: looked.append(stopped()), "driver": driver}
    exec(compile(example, "testing-exactly-once.md", "exec"), names)
    assert [file.name for file in tmp_path.iterdir()] == ["stop after decide"]
    assert looked == [False]
    driver.kill.assert_called_once_with()
