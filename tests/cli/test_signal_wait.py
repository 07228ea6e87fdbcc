"""SignalWait: a signal ends the wait, however early it arrives."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from spark_kafka_sink.cli.signal_wait import SignalWait


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_right_after_setup_ends_wait(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    raised_signals: list[int] = []
    install_handler = signal.signal

    def install_and_raise_signal(installed_number: int, handler: Any) -> Any:
        previous_handler = install_handler(installed_number, handler)
        if installed_number == number and not raised_signals:
            raised_signals.append(installed_number)
            signal.raise_signal(number)
        return previous_handler

    monkeypatch.setattr(signal, "signal", install_and_raise_signal)
    with SignalWait() as signals:
        assert signals.wait(0)
    assert raised_signals == [number]


def test_wait_times_out_without_signal() -> None:
    with SignalWait() as signals:
        assert not signals.wait(0)
