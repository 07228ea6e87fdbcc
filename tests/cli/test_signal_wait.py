"""SignalWait: a signal ends the wait, however early it arrives."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from spark_kafka_sink.cli.signal_wait import SignalWait


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_right_after_setup_ends_wait(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    install = signal.signal

    def and_it_comes(installed: int, handler: Any) -> Any:
        before = install(installed, handler)
        if installed == number and not handled:
            handled.append(installed)
            signal.raise_signal(number)
        return before

    monkeypatch.setattr(signal, "signal", and_it_comes)
    with SignalWait() as signals:
        assert signals.wait(0)
    assert handled == [number]


def test_wait_times_out_without_signal() -> None:
    with SignalWait() as signals:
        assert not signals.wait(0)
