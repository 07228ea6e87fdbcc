"""`pykafka broker` passes its flags to the embedded broker."""

from __future__ import annotations

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
