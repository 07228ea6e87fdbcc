"""Generator of the table of Spark versions in docs/compatibility.md, from the smoke suite's results on each version.

`make spark-matrix` runs the suite and then `python -m tools.spark_matrix build/spark-matrix`, which reads one JUnit
file for each version (`3.5.9.xml`, `sail.xml`) and rewrites the table.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from tools.document_sections import replace_sections

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "compatibility.md"
SECTION = "Spark versions"

FEATURES: Mapping[str, Sequence[str]] = {
    "batch": (
        "test_writes_columns_in_any_order_and_ignores_others",
        "test_report_has_offsets_rows_and_bytes",
        "test_writes_each_row_once",
    ),
    "stream": ("test_stream_reports_each_micro_batch", "test_update_mode_writes_changed_rows"),
    "exactly-once batch": (
        "test_exactly_once_job_with_failed_task_writes_nothing_until_it_succeeds",
        "test_exactly_once_job_writes_once_although_it_runs_twice",
    ),
    "exactly-once stream": (
        "test_exactly_once_stream_is_ordered_and_last_batch_is_not_rewritten",
        "test_exactly_once_stream_with_failed_task_continues_after_restart",
    ),
    "dead letters": ("test_writes_too_large_records_to_dead_letter_topic",),
    "checks of `register`": (
        "test_rejects_mistake_after_shuffle_before_any_task",
        "test_fails_with_error_about_unknown_option",
    ),
    "`mapInArrow`": ("test_writes_each_row_once_and_reports_tasks",),
    "SQL and tables": ("test_statements_suggested_by_the_error_write",),
    "Spark Connect": ("test_connect_writes_batches_and_streams_and_rejects_mistakes_early",),
}
"""Features, and the tests that use them. A version has a feature if at least one of its tests passed on it."""


class MatrixError(Exception):
    """Raised if the results are missing or incomplete, so that they cannot be shown as a table."""


def read_passed_tests(results: Path) -> set[str]:
    """Return the names of the tests that passed, without their parameters.

    The table is based on complete runs only, so raise MatrixError if a test failed or was skipped.
    """
    passed = set()
    for case in ElementTree.parse(results).iter("testcase"):
        if any(case.find(outcome) is not None for outcome in ("failure", "error", "skipped")):
            raise MatrixError(f"{results.name}: {case.get('name')} did not pass")
        passed.add(str(case.get("name")).partition("[")[0])
    return passed


def build_table(passed_tests: Mapping[str, set[str]]) -> str:
    """Return the table with one row for each version, in the order of the mapping."""
    lines = [f"| Spark version | {' | '.join(FEATURES)} |", f"| --- |{' --- |' * len(FEATURES)}"]
    for version, passed in passed_tests.items():
        cells = ["yes" if passed & set(tests) else "no" for tests in FEATURES.values()]
        lines.append(f"| {version} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def read_results(folder: Path) -> dict[str, set[str]]:
    """Return the passed tests of each version, with the oldest version first and Sail last.

    Raise MatrixError if there are no results or a version did not pass all tests.
    """
    files = sorted(folder.glob("[0-9]*.xml"), key=lambda file: [int(part) for part in file.stem.split(".")])
    results = {f"Spark {file.stem}": read_passed_tests(file) for file in files}
    for file in folder.glob("sail.xml"):
        results["Sail"] = read_passed_tests(file)
    if not results:
        raise MatrixError(f"{folder} has no results: run `make spark-matrix`")
    return results


def main(folder: Path) -> None:
    table = build_table(read_results(folder))
    sections = {SECTION: f"{table}\n*All of these tests passed on {date.today():%-d %B %Y}.*\n"}
    DOCUMENT.write_text(replace_sections(DOCUMENT.read_text(), sections))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
