"""Pytest hooks of tests/ and integration/. See tests/requirements.py for tests without Java or Kafka."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

from tests.exactly_once.sampling import deselect_unsampled_cases
from tests.requirements import REMEDIES, report_skipped_tests, skip_unsupported_tests

# No test may fail because the machine is busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_unsupported_tests(items)
    deselect_unsampled_cases(config, items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection, which makes tests a tenth faster."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report_skipped_tests(terminalreporter)


@pytest.fixture
def missing_in_ci() -> None:
    pytest.fail("A requirement of the test is missing, and CI skips no tests: " + "; ".join(REMEDIES.values()))
