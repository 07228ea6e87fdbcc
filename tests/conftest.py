"""Shared by all tests; see requirements.py for what happens where Java or Kafka is missing."""

from __future__ import annotations

import pytest

from tests.requirements import REMEDIES, say_what_did_not_run, skip_what_cannot_run


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_what_cannot_run(config, items)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    say_what_did_not_run(terminalreporter)


@pytest.fixture
def missing_in_ci() -> None:
    pytest.fail("in CI nothing is skipped. What can be missing: " + "; ".join(REMEDIES.values()))
