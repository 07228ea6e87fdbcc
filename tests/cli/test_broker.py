"""`pykafka broker` passes its flags to the embedded broker, and rejects those that would have no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_kafka_sink import cli, testing


def test_passes_thread_counts_to_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {}

    def record_settings(*_: object, **arguments: Any) -> None:
        settings.update(arguments)
        raise OSError("not started")

    monkeypatch.setattr(testing, "embedded_broker", record_settings)
    arguments = ["--num-network-threads", "3", "--num-io-threads", "0", "--queued-max-requests", "7"]
    assert cli.main(["broker", *arguments]) == 1
    names = ("num_network_threads", "num_io_threads", "queued_max_requests")
    assert [settings[name] for name in names] == [3, 0, 7]


@pytest.mark.parametrize(
    ("arguments", "flags", "protocols"),
    [
        (["--users", "FILE"], ["--users"], "SASL_PLAINTEXT or SASL_SSL"),
        (["--unsigned-tokens", "--security", "PLAINTEXT"], ["--unsigned-tokens"], "SASL_PLAINTEXT or SASL_SSL"),
        (["--users", "FILE", "--security", "SSL", "--certificate", "FILE"], ["--users"], "SASL_PLAINTEXT or SASL_SSL"),
        (["--certificate", "FILE", "--client-ca", "FILE"], ["--certificate", "--client-ca"], "SSL or SASL_SSL"),
        (
            ["--client-ca", "FILE", "--users", "FILE", "--security", "SASL_PLAINTEXT"],
            ["--client-ca"],
            "SSL or SASL_SSL",
        ),
    ],
)
def test_rejects_security_flags_without_effect(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    flags: list[str],
    protocols: str,
) -> None:
    """A listener that ignored these flags would accept clients without a login or a certificate."""
    monkeypatch.setattr(testing, "embedded_broker", lambda *_, **__: pytest.fail("started a listener"))
    (file := tmp_path / "file").write_text("alice:secret\n")
    assert cli.main(["broker", *(str(file) if argument == "FILE" else argument for argument in arguments)]) == 1
    protocol = arguments[arguments.index("--security") + 1] if "--security" in arguments else "PLAINTEXT"
    faults = [f"{flag} has no effect with {protocol}: set --security to {protocols}." for flag in flags]
    assert capsys.readouterr().err == "pykafka: " + "\n".join(faults) + "\n"
