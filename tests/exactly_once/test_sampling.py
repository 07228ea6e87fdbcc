"""The cases that `make test` runs: every case in one of its transaction versions."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.exactly_once.sampling import COMPLETE_FILES, deselect_unsampled_cases

TEST = "tests/exactly_once/test_driver.py::test_commits"


class Case:
    """The parts of a pytest.Item that the selection reads."""

    def __init__(self, test: str, parameters: dict[str, object]) -> None:
        self.nodeid = f"{test}[{parameters}]"
        indices = {name: hash(value) for name, value in parameters.items()}
        self.callspec = SimpleNamespace(params=parameters, indices=indices)

    def iter_markers(self, name: str) -> Iterator[object]:
        return iter(())


def build_case(test: str = TEST, **parameters: object) -> Any:
    return Case(test, parameters)


def select(*cases: Any, arguments: tuple[str, ...] = ("tests",)) -> list[Any]:
    items = list(cases)
    config: Any = SimpleNamespace(args=arguments, hook=SimpleNamespace(pytest_deselected=lambda items: None))
    deselect_unsampled_cases(config, items)
    return items


@pytest.fixture(autouse=True)
def no_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOAK", raising=False)


def test_each_case_runs_in_one_version_and_about_half_of_them_in_each() -> None:
    cases = [build_case(broker=version, count=count) for count in range(40) for version in (1, 2)]
    selected = select(*cases)
    assert sorted(case.callspec.params["count"] for case in selected) == list(range(40))
    assert 10 <= sum(case.callspec.params["broker"] == 1 for case in selected) <= 30


@pytest.mark.parametrize("version", [1, 2])
def test_case_that_exists_in_one_version_always_runs(version: int) -> None:
    cases = [build_case(f"{TEST}_{number}", broker=version) for number in range(10)]
    assert select(*cases) == cases


def test_other_parameters_named_broker_or_version_are_no_transaction_versions() -> None:
    cases = [
        *(build_case(broker=auto_create) for auto_create in (False, True)),
        *(build_case("tests/cli/test_topics.py::test_lists", version=version) for version in (1, 2)),
        build_case(),
    ]
    assert select(*cases) == cases


def test_all_cases_of_complete_files_and_of_named_tests_run() -> None:
    cases = [build_case(f"{COMPLETE_FILES[0]}::test_explores", broker=version) for version in (1, 2)]
    assert select(*cases) == cases
    cases = [build_case(broker=version) for version in (1, 2)]
    assert select(*cases, arguments=(TEST,)) == cases
