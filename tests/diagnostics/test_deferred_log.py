"""Log records are deferred until a check ends, and dropped if it raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Thread

import pytest

from spark_kafka_sink.diagnostics.deferred_log import clear_logged_warnings, defer_log, warn_once

LOG = logging.getLogger("spark_kafka_sink.client.connections")
OTHER = logging.getLogger("someone.else")


@pytest.fixture(autouse=True)
def clear_state(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    clear_logged_warnings()
    with caplog.at_level(logging.INFO):
        yield
    clear_logged_warnings()


def run_failing_check(*actions: Callable[[], object]) -> None:
    """Run a check that calls the actions, which log, and then raises."""

    def check() -> None:
        with defer_log():
            for action in actions:
                action()
            raise ValueError("rejected")

    with pytest.raises(ValueError, match="rejected"):
        check()


def test_emits_deferred_records_in_order_after_block(caplog: pytest.LogCaptureFixture) -> None:
    with defer_log():
        LOG.info("first")
        LOG.warning("second %d", 2)
        assert caplog.messages == []
    assert caplog.messages == ["first", "second 2"]
    LOG.info("third")
    assert caplog.messages[2:] == ["third"], "records are no longer deferred"


def test_drops_deferred_records_when_block_raises(caplog: pytest.LogCaptureFixture) -> None:
    run_failing_check(lambda: LOG.warning("the same in other words"))
    assert caplog.messages == []
    LOG.warning("later")
    assert caplog.messages == ["later"]


def test_nested_blocks_drop_records_of_failed_check(caplog: pytest.LogCaptureFixture) -> None:

    def inner() -> None:
        with defer_log():
            LOG.warning("of the inner one")

    run_failing_check(inner)
    assert caplog.messages == []


def test_does_not_defer_other_threads_and_packages(caplog: pytest.LogCaptureFixture) -> None:
    thread = Thread(target=LOG.warning, args=("of another thread",))
    run_failing_check(thread.start, thread.join, lambda: OTHER.warning("of another package"))
    assert caplog.messages == ["of another thread", "of another package"]


def test_exempt_package_logs_immediately(caplog: pytest.LogCaptureFixture) -> None:
    names = ("spark_kafka_sink.formats.schema_registry", "spark_kafka_sink.formats", "spark_kafka_sink.formatting")
    registry, formats, another = map(logging.getLogger, names)
    with defer_log(exempt="spark_kafka_sink.formats"):
        registry.info("the registry asks to wait")
        formats.info("here, too")
        another.info("not here")
        assert caplog.messages == ["the registry asks to wait", "here, too"]
    assert caplog.messages[2:] == ["not here"]


def test_logs_warning_once_and_again_after_it_was_dropped(caplog: pytest.LogCaptureFixture) -> None:
    run_failing_check(lambda: warn_once(LOG, "in clear"))
    assert caplog.messages == []
    for _ in range(3):
        with defer_log():
            warn_once(LOG, "in clear")
    assert caplog.messages == ["in clear"]


def test_number_of_remembered_warnings_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        warn_once(LOG, str(number))
    warn_once(LOG, "999")
    assert len(caplog.messages) == 1000
    warn_once(LOG, "0")
    assert caplog.messages[1000:] == ["0"], "the oldest warning is no longer remembered"
