"""Which security a listener can have, and what is said of one that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.testing import ListenerSecurity, embedded_broker

SECRET = "a secret that must not show"
USERS = {"alice": SECRET}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"protocol": "TLS"}, "not TLS"),
        ({"protocol": "SSL"}, "needs a certificate"),
        ({"protocol": "SASL_PLAINTEXT"}, "needs users"),
        ({"mechanisms": ["GSSAPI"]}, "not GSSAPI"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_reason(fields: dict[str, object], fault: str) -> None:
    with pytest.raises(ConfigurationError, match=fault):
        ListenerSecurity(**fields)  # type: ignore[arg-type]


def test_a_certificate_that_is_none_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        embedded_broker(security=ListenerSecurity("SSL", certificate=wrong))


def test_passwords_are_not_in_the_repr() -> None:
    assert SECRET not in repr(ListenerSecurity("SASL_PLAINTEXT", users=USERS))
