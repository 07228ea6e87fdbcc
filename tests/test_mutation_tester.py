"""tools/mutation_tester.py deletes each statement and exception handler once, and reports surviving mutants."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.accepted_survivors import ACCEPTED_SURVIVORS
from tools.mutants import code_location, compile_mutant, delete_statement, find_loaded_functions, find_statements
from tools.mutation_report import MutationReport, accepted_survivor_key
from tools.mutation_tester import ROOT, TARGETS, resolve_target

SOURCE = '''"""A module."""

import os

LIMIT = 3


def largest(numbers: list[int]) -> int:
    """Return the largest."""
    number: int
    found = 0
    for number in numbers:
        if number > found:
            found = number
    try:
        os.stat("x")
    except OSError:
        found = 1
    return found


def find_first(numbers: list[int]) -> int | None:
    if numbers:
        return numbers[0]
    return None


def find_text(path: str) -> str | None:
    try:
        if os.stat(path).st_size == 0:
            return None
        return open(path).read()
    except OSError:
        return None
'''


def test_deletes_each_statement_of_a_function_once() -> None:
    assert [statement.text for statement in find_statements(SOURCE)] == [
        "found = 0",
        "for number in numbers:",
        "if number > found:",
        "found = number",
        "try:",
        'os.stat("x")',
        "except OSError:",
        "found = 1",
        "return found",
        "if numbers:",
        "return numbers[0]",
        "try:",
        "if os.stat(path).st_size == 0:",
        "return None",
        "return open(path).read()",
        "except OSError:",
    ]


def test_mutant_never_executes_deleted_statement() -> None:
    for statement in find_statements(SOURCE):
        mutant = ast.unparse(delete_statement(SOURCE, statement))
        if statement.text == "except OSError:":
            assert mutant.count("except ():") == 1
        else:
            assert mutant.count("if False:") == 1
            assert mutant.split("if False:")[1].split("\n")[1].strip() == statement.text.replace('"', "'")


def add_numbers(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total += number
    return total


class Doubler:
    @staticmethod
    def double(number: int) -> int:
        if number > 0:
            number *= 2
        return number


def test_mutates_function_for_all_its_importers() -> None:
    module = Path(__file__)
    source, functions = module.read_text(), find_loaded_functions()
    cases: dict[str, tuple[Callable[[], int], int, int]] = {  # statement -> call, result, result of the mutant
        "total += number": (lambda: add_numbers([1, 2]), 3, 0),
        "number *= 2": (lambda: Doubler.double(2), 4, 2),
    }
    for statement in find_statements(source):
        if statement.text in cases:
            call, result, mutant_result = cases.pop(statement.text)
            mutant_code = compile_mutant(module, source, statement)
            (function,) = functions[code_location(mutant_code)]
            original_code, function.__code__ = function.__code__, mutant_code
            try:
                assert call() == mutant_result
            finally:
                function.__code__ = original_code
            assert call() == result
    assert not cases


def test_reports_killing_test_and_surviving_mutants(tmp_path: Path) -> None:
    module, tests = tmp_path / "mutated_module.py", tmp_path / "test_mutated_module.py"
    module.write_text(
        "def largest(numbers):\n    found = 0\n    unused = 1\n    for number in numbers:\n"
        "        found = max(found, number)\n    while found < 0:\n        found += 1\n    return found\n"
    )
    tests.write_text("from mutated_module import largest\n\n\ndef test_five():\n    assert largest([5]) == 5\n")
    output = run_mutation_plugin(tmp_path, module, tests).splitlines()
    lines = [line.partition(":")[2] for line in output if line.startswith("mutated_module")]
    assert [re.sub("# .*::", "# ", line) for line in lines] == [
        "2: found = 0  # test_five",
        "3: unused = 1",
        "5: found = max(found, number)  # test_five",
        "4: for number in numbers:  # test_five",
        "7: found += 1",
        "6: while found < 0:",
        "8: return found  # test_five",
        " 7 mutants, 4 killed, 3 survived, 0 accepted survivors",
    ]


def test_omits_accepted_survivors_and_reports_those_that_a_test_kills(tmp_path: Path) -> None:
    module, tests = tmp_path / "mutated_module.py", tmp_path / "test_mutated_module.py"
    module.write_text("class Numbers:\n    def five(self):\n        unused = 1\n        return 5\n")
    tests.write_text("import mutated_module\n\n\ndef test_five():\n    assert mutated_module.Numbers().five() == 5\n")
    keys = [f"mutated_module.py: Numbers.five: {text}" for text in ("unused = 1", "return 5")]
    output = run_mutation_plugin(tmp_path, module, tests, accepted_survivors=dict.fromkeys(keys, "a reason"))
    lines = [line for line in output.splitlines() if line.startswith("mutated_module")]
    assert [re.sub("(# |fails ).*::", r"\1", line) for line in lines] == [
        "mutated_module.py:4: return 5  # test_five",
        f"{keys[1]}: remove it from ACCEPTED_SURVIVORS, because it fails test_five",
        "mutated_module.py: 2 mutants, 1 killed, 0 survived, 1 accepted survivors",
    ]


def test_limits_tests_of_mutant_to_fastest(tmp_path: Path) -> None:
    module, tests = tmp_path / "mutated_module.py", tmp_path / "test_mutated_module.py"
    module.write_text(
        "def double(number):\n    number = abs(number)\n    if number > 0:\n        number *= 2\n    return number\n"
    )
    tests.write_text(
        "import mutated_module, __main__\n\n\ndef test_slow():\n    __main__.now_s += 1.0\n"
        "    assert mutated_module.double(-1) == 2\n\n\ndef test_fast():\n    assert mutated_module.double(0) == 0\n"
    )
    output = run_mutation_plugin(tmp_path, module, tests, max_seconds=0.0).splitlines()
    lines = [line.partition(":")[2] for line in output if line.startswith("mutated_module")]
    assert [re.sub("# .*::", "# ", line) for line in lines] == [
        "2: number = abs(number)",
        "4: number *= 2  # test_slow",
        "3: if number > 0:  # test_slow",  # has failed on another mutant of the function
        "5: return number  # test_slow",
        " 4 mutants, 3 killed, 1 survived, 0 accepted survivors",
    ]


def test_tests_mutants_concurrently(tmp_path: Path) -> None:
    module, tests = tmp_path / "mutated_module.py", tmp_path / "test_mutated_module.py"
    module.write_text("def five():\n    unused = 1\n    unused = 2\n    return 5\n")
    tests.write_text("import mutated_module\n\n\ndef test_five():\n    assert mutated_module.five() == 5\n")
    output = run_mutation_plugin(tmp_path, module, tests, processes=2)
    assert sorted(re.findall(r"mutated_module.py:(\d)", output)) == ["2", "3", "4"]
    assert "3 mutants, 1 killed, 2 survived" in output


def test_reports_test_that_fails_on_unchanged_module(tmp_path: Path) -> None:
    module, tests = tmp_path / "mutated_module.py", tmp_path / "test_mutated_module.py"
    module.write_text("def five():\n    return 5\n")
    tests.write_text("import mutated_module\n\n\ndef test_six():\n    assert mutated_module.five() == 6, 'a reason'\n")
    output = run_mutation_plugin(tmp_path, module, tests)
    assert re.search(r"(?s)fails on the unchanged modules: .*::test_six.*AssertionError: a reason", output)


def test_does_not_mutate_if_tests_cannot_be_collected(tmp_path: Path) -> None:
    module, tests = tmp_path / "mutated_module.py", tmp_path / "test_mutated_module.py"
    module.write_text("def five():\n    return 5\n")
    tests.write_text("from mutated_module import six\n")
    output = run_mutation_plugin(tmp_path, module, tests)
    assert "mutants" not in output
    assert "the tests cannot be collected" in output


@pytest.mark.parametrize(
    ("statements", "asserted_number", "status"),
    [
        ("return 5", 5, 0),
        ("unused = 1; return 5", 5, 1),  # one of two mutants survives
        ("return 5", 6, 1),  # the test fails on the unchanged module
    ],
)
def test_exit_status_is_1_unless_tests_pass_and_kill_nearly_all_mutants(
    tmp_path: Path, statements: str, asserted_number: int, status: int
) -> None:
    module, tests = tmp_path / "mutated_module.py", tmp_path / "test_mutated_module.py"
    module.write_text(f"def five():\n    {statements}\n".replace("; ", "\n    "))
    tests.write_text(
        f"import mutated_module\n\n\ndef test_five():\n    assert mutated_module.five() == {asserted_number}\n"
    )
    program = f"""
import pathlib, sys
from tools import mutation_tester
sys.path.insert(0, {str(tmp_path)!r})
mutation_tester.ROOT = pathlib.Path({str(tmp_path)!r})
sys.argv = ["mutation_tester", {str(module)!r}, "--tests", {str(tests)!r}]
sys.exit(mutation_tester.main())
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == status, process.stdout + process.stderr


def test_kills_mutants_only_with_tests_of_their_target(tmp_path: Path) -> None:
    checks = {"first": "first.five()", "second": "assert first.five() == second.five() == 5"}
    for name, check in checks.items():
        (tmp_path / f"{name}.py").write_text("def five():\n    return 5\n")
        (tmp_path / f"test_{name}.py").write_text(f"import first, second\n\n\ndef test_five():\n    {check}\n")
    program = f"""
import pathlib, sys
from tools import mutation_tester
sys.path.insert(0, {str(tmp_path)!r})
mutation_tester.ROOT = pathlib.Path({str(tmp_path)!r})
mutation_tester.TARGETS = {{
    name: ((f"{{name}}.py",), (f"{tmp_path}/test_{{name}}.py",)) for name in ("first", "second")
}}
sys.argv = ["mutation_tester", {str(tmp_path / "first.py")!r}, "--target", "second"]
sys.exit(mutation_tester.main())
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert "second.py: 1 mutants, 1 killed, 0 survived, 0 accepted survivors" in process.stdout
    assert "first.py: 1 mutants, 0 killed, 1 survived, 0 accepted survivors" in process.stdout
    assert process.returncode == 1  # one target has too many survivors, although the other one has none


def test_finds_accepted_survivors_that_a_test_kills() -> None:
    statement = find_statements("def five():\n    return 5\n")[0]
    key = accepted_survivor_key("mutated_module.py", statement)
    report = MutationReport({key: "a reason"}, show_killed=False)
    report.add("mutated_module.py", statement, "")
    assert report.find_killed_accepted_survivors() == {}
    report = MutationReport({key: "a reason"}, show_killed=False)
    report.add("mutated_module.py", statement, "test_five")
    assert report.find_killed_accepted_survivors() == {key: "test_five"}


def run_mutation_plugin(folder: Path, module: Path, tests: Path, **arguments: Any) -> str:
    """Run the plugin on a module in a new process, and return its output.

    A test takes no time, except for what it adds to `__main__.now_s`.
    """
    program = f"""
import pathlib, pytest, sys, types
from tools import mutation_tester
now_s = 0.0
mutation_tester.time = types.SimpleNamespace(perf_counter=lambda: now_s)
sys.path.insert(0, {str(folder)!r})
mutation_tester.ROOT = pathlib.Path({str(folder)!r})
target = mutation_tester.Target([pathlib.Path({str(module)!r})], [{str(tests)!r}])
plugin = mutation_tester.MutationPlugin([target], show_killed=True, **{arguments!r})
pytest.main(["-q", "-p", "no:cacheprovider", "--capture=sys", {str(tests)!r}], plugins=[plugin])
"""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_targets_and_their_tests_exist() -> None:
    targets = [resolve_target(name) for name in TARGETS]
    names = {module.name for target in targets for module in target.modules}
    assert {"driver.py", "manager.py"} <= names
    assert all((ROOT / path).exists() for target in targets for path in target.tests)


def test_accepted_survivors_exist() -> None:
    keys = {
        accepted_survivor_key(module.relative_to(ROOT).as_posix(), statement)
        for name in TARGETS
        for module in resolve_target(name).modules
        for statement in find_statements(module.read_text())
    }
    assert set(ACCEPTED_SURVIVORS) - keys == set()
