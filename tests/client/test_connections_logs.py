"""Log messages about connections and their levels."""

from __future__ import annotations

import logging

import pytest

from tests.client.rig import ready_rig


def list_message_levels(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.levelname for record in caplog.records if text in record.getMessage()]


def test_logs_connection_closed_by_broker_without_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "spark_kafka_sink.client")
    rig = ready_rig()
    for connection in rig.system.connections:
        connection.close()
    rig.pass_time(60_000)
    assert "INFO" in list_message_levels(caplog, "Disconnected: b0:9092")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_logs_closing_of_idle_connection_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "spark_kafka_sink.client")
    rig = ready_rig(connections_max_idle_ms=10_000)
    rig.pass_time(60_000)
    assert set(list_message_levels(caplog, "idle for 10000 ms")) == {"DEBUG"}


def test_logs_unreachable_broker_once_and_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "spark_kafka_sink.client")
    rig = ready_rig(brokers=1)
    for _ in range(2):
        caplog.clear()
        rig.system.refuse("b0", 9092)
        for connection in rig.system.connections:
            connection.close()
        rig.pass_time(120_000)
        assert len(rig.system.connects) > 50, "the client retries the connection"
        warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert warnings[0] == "Connection failed: b0:9092: Connection refused"
        rig.system.listen("b0", 9092, rig.broker)
        rig.bootstrap()
        rig.make_ready()
        assert list_message_levels(caplog, "Connected: b0:9092") == ["INFO"]
