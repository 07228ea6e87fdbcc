"""Shared by tests/ and integration/; see tests/requirements.py for what happens where Java or Kafka is missing."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

from tests.requirements import REMEDIES, report_skipped_tests, skip_unsupported_tests

# No test may fail because the machine has other work to do.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_unsupported_tests(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay. Where the collector does not look at them, tests take a tenth less time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report_skipped_tests(terminalreporter)


@pytest.fixture
def missing_in_ci() -> None:
    pytest.fail("in CI nothing is skipped. What can be missing: " + "; ".join(REMEDIES.values()))
