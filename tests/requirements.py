"""Requirements of tests beyond Python: `@pytest.mark.needs("java")`.

The requirements are `"java"`, `"kafka"` (the jars of Apache Kafka), `"connector"` (the jars of Spark's own Kafka
connector), `"registry"` (a schema registry, which includes its own Java) and, without Java, `"browser"`, `"go"`,
`"prometheus"` (with promtool) and `"sail"`.

On a user's machine, a test with a missing requirement is skipped, and the summary lists the number of skipped tests and
what to install. In CI (the variable CI is set) the test fails, because a guarantee must not go unchecked.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable

import pytest

from integration.support.artifacts import JARS, SAIL_PYTHON, connector_jars

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WITHOUT_JAVA = {"browser", "go", "prometheus", "sail"}
REMEDIES = {
    "java": "Java is not on the PATH: install a JDK 17 or newer",
    "kafka": "no Apache Kafka in .jars: run `make kafka`",
    "registry": "no schema registry in .jars: run `make kafka`",
    "browser": "no Chromium or Chrome on the PATH: install one of them",
    "go": "Go is not on the PATH: install Go 1.26 or newer",
    "prometheus": "prometheus and promtool are not on the PATH: install Prometheus",
    "sail": "Sail is not in .venv-sail: run `make test-prepare`",
    "connector": "Spark's own connector is not in .jars: run `make kafka`",
}


def is_present(requirement: str) -> bool:
    if requirement == "java":
        return shutil.which("java") is not None
    if requirement == "kafka":
        return is_present("java") and any((JARS / "kafka").glob("kafka_*.jar"))
    if requirement == "connector":
        return is_present("java") and bool(connector_jars())
    if requirement == "browser":
        return browser() is not None
    if requirement == "go":
        return shutil.which("go") is not None
    if requirement == "prometheus":
        return all(shutil.which(program) for program in ("prometheus", "promtool"))
    if requirement == "sail":
        return SAIL_PYTHON.exists()
    if requirement == "registry":
        return (JARS / "registry" / "quarkus-run.jar").exists()
    raise ValueError(f"unknown requirement {requirement!r}")


def browser() -> str | None:
    """Return the path of an installed browser."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


def skip_unsupported_tests(items: Iterable[pytest.Item]) -> None:
    """Skip the tests whose requirements are missing. To be called in pytest_collection_modifyitems."""
    available = {requirement: is_present(requirement) for requirement in REMEDIES}
    for item in items:
        marked = [name for mark in item.iter_markers("needs") for name in mark.args]
        required = marked if WITHOUT_JAVA.issuperset(marked) else ["java", *marked]
        missing = next((name for name in required if not available[name]), None)
        if missing is None:
            continue
        if os.environ.get("CI"):
            # This must be the first fixture, because others would fail as well, with less helpful messages.
            item.fixturenames.insert(0, "missing_in_ci")  # type: ignore[attr-defined]
        else:
            item.add_marker(pytest.mark.skip(reason=REMEDIES[missing]))


def report_skipped_tests(reporter: pytest.TerminalReporter) -> None:
    """Print the number of skipped tests by reason. To be called in pytest_terminal_summary.

    The numbers come from the test reports, which exist even if other processes run the tests.
    """
    reasons = Counter(str(report.longrepr[2]) for report in reporter.stats.get("skipped", []))
    for remedy in REMEDIES.values():
        if count := reasons[f"Skipped: {remedy}"]:
            reporter.write_line(f"{count} tests did not run: {remedy}", yellow=True)
