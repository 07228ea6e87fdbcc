"""What a test needs beyond Python, and what happens where it is missing.

`@pytest.mark.needs("java")`, `"kafka"` (the jars of a real Kafka), `"connector"` (the jars of Spark's own connector) or
`"registry"` (those of a schema registry, which brings a Java of its own); or, without Java, `"browser"` or
`"promtool"`.
On a user's machine such a test is skipped, and the last lines of the run say how many were, and what to install. In CI
(the variable CI is set) a missing piece is a failure: a proof that did not run is no proof.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterable

import pytest

from integration.support.artifacts import JARS, connector_jars

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WITHOUT_JAVA = {"browser", "promtool"}
REMEDIES = {
    "java": "Java is not on the PATH: install a JDK 17 or newer",
    "kafka": "no Apache Kafka in .jars: run `make kafka`",
    "registry": "no schema registry in .jars: run `make kafka`",
    "browser": "no Chromium or Chrome on the PATH: install one of them",
    "promtool": "promtool is not on the PATH: install Prometheus",
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
    if requirement == "promtool":
        return shutil.which("promtool") is not None
    if requirement == "registry":
        return (JARS / "registry" / "quarkus-run.jar").exists()
    raise ValueError(f"unknown requirement {requirement!r}")


def browser() -> str | None:
    """Its path."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


def skip_what_cannot_run(items: Iterable[pytest.Item]) -> None:
    """For pytest_collection_modifyitems."""
    present = {requirement: is_present(requirement) for requirement in REMEDIES}
    for item in items:
        wanted = [name for mark in item.iter_markers("needs") for name in mark.args]
        needed = wanted if WITHOUT_JAVA.issuperset(wanted) else ["java", *wanted]
        missing = next((name for name in needed if not present[name]), None)
        if missing is None:
            continue
        if os.environ.get("CI"):
            # In front of all fixtures: they would fail too, and say less.
            item.fixturenames.insert(0, "missing_in_ci")  # type: ignore[attr-defined]
        else:
            item.add_marker(pytest.mark.skip(reason=REMEDIES[missing]))


def say_what_did_not_run(reporter: pytest.TerminalReporter) -> None:
    """For pytest_terminal_summary. From the reports, which also come when other processes run the tests."""
    reasons = Counter(str(report.longrepr[2]) for report in reporter.stats.get("skipped", []))
    for remedy in REMEDIES.values():
        if count := reasons[f"Skipped: {remedy}"]:
            reporter.write_line(f"{count} tests did not run: {remedy}", yellow=True)
