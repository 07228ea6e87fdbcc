"""The warnings and the redaction settings of register(), without a Spark session."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from pyspark.errors import IllegalArgumentException

from spark_kafka_sink.formats.registry_options import REGISTRY_OPTIONS
from spark_kafka_sink.network.security_options import SECURITY_OPTIONS
from spark_kafka_sink.spark.patches.drop_in import REDACTION_CONFS, _redact_secrets, _warn_about_python_mismatch


def test_warns_when_local_workers_run_another_python(caplog: pytest.LogCaptureFixture) -> None:
    _warn_about_python_mismatch("local[2]", "/no/such/python3")
    (warning,) = caplog.messages
    assert warning.startswith("Spark runs its Python workers with /no/such/python3, but")
    assert warning.endswith(f"set PYSPARK_PYTHON to {sys.executable} before you create the session.")


@pytest.mark.parametrize(("master", "python"), [("local[2]", sys.executable), ("spark://host:7077", "python3")])
def test_does_not_warn_for_same_python_or_on_a_cluster(
    master: str, python: str, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_about_python_mismatch(master, python)
    assert caplog.text == ""


SECRETS = [name for name, option in SECURITY_OPTIONS.items() if option.secret]
REGISTRY_SECRETS = [option.name for option in REGISTRY_OPTIONS if option.secret]
REGISTRY_CLIENT_SECRETS = [
    "basic.auth.user.info",
    "bearer.auth.token",
    "apicurio.auth.client.secret",
    "apicurio.registry.auth.password",
]
MISSPELT_SECRETS = ["sasl_plain_password", "kafka.sasl.password", "kafka.sasl.jaas.confg", "kafka.ssl_password"]


@pytest.mark.parametrize("name", [*SECRETS, *REGISTRY_SECRETS, *REGISTRY_CLIENT_SECRETS, *MISSPELT_SECRETS])
@pytest.mark.parametrize("prefix", ["", "kafka.", "KAFKA."])
def test_spark_redacts_secrets_also_of_ignored_and_rejected_options(name: str, prefix: str) -> None:
    """Spark Connect logs the request, which contains these options, before the driver checks them."""
    assert re.search(REDACTION_CONFS["spark.sql.redaction.options.regex"], prefix + name)
    pattern = REDACTION_CONFS["spark.sql.redaction.string.regex"].replace("++", "+").replace("*+", "*")
    request = (
        f'options {{\n key: "{prefix}{name}"\n value: "hush \\" hush"\n}}\noptions {{ key: "topic" value: "orders" }}'
    )
    assert "hush" in request
    shown = re.sub(pattern, "", request)
    assert "hush" not in shown
    assert '"orders"' in shown


class Session:
    """A session of an engine that has some of Spark's settings."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings
        self.conf: Any = self

    def get(self, name: str) -> str:
        if name not in self.settings:
            raise IllegalArgumentException("configuration not found")
        return self.settings[name]

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value


def test_redaction_extends_only_settings_that_the_engine_has() -> None:
    name, other = REDACTION_CONFS
    session: Any = Session({name: "(?i)url"})
    _redact_secrets(session)
    assert session.settings == {name: f"(?i)url|{REDACTION_CONFS[name]}"}
    assert other not in session.settings
