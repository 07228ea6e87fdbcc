"""tools/take_out.py: removes each statement of a function once, and nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tools.take_out import ROOT, code_without, functions_by_place, in_rooms, place_of, statements, without

SOURCE = '''"""A module."""

import os

LIMIT = 3


def largest(numbers: list[int]) -> int:
    """Return the largest."""
    found = 0
    for number in numbers:
        if number > found:
            found = number
    try:
        os.stat("x")
    except OSError:
        found = 1
    return found
'''


def test_removes_each_statement_of_a_function_once() -> None:
    assert [each.text for each in statements(SOURCE)] == [
        "found = 0",
        "for number in numbers:",
        "if number > found:",
        "found = number",
        "try:",
        'os.stat("x")',
        "found = 1",
        "return found",
    ]


def test_mutant_never_executes_removed_statement() -> None:
    for statement in statements(SOURCE):
        left = ast.unparse(without(SOURCE, statement))
        assert left.count("if False:") == 1
        assert left.split("if False:")[1].split("\n")[1].strip() == statement.text.replace('"', "'")


def a_sum(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total += number
    return total


class Doubled:
    @staticmethod
    def of(number: int) -> int:
        if number > 0:
            number *= 2
        return number


def test_removes_statement_in_all_importers_of_a_function() -> None:
    module = Path(__file__)
    source, functions = module.read_text(), functions_by_place()
    wanted: dict[str, tuple[Callable[[], int], int, int]] = {
        "total += number": (lambda: a_sum([1, 2]), 3, 0),
        "number *= 2": (lambda: Doubled.of(2), 4, 2),
    }
    for statement in statements(source):
        if statement.text in wanted:
            call, before, after = wanted.pop(statement.text)
            code = code_without(module, source, statement)
            (function,) = functions[place_of(code)]
            kept, function.__code__ = function.__code__, code
            try:
                assert call() == after
            finally:
                function.__code__ = kept
            assert call() == before
    assert not wanted


def test_reports_killing_test_and_surviving_mutants(tmp_path: Path) -> None:
    module, tests = tmp_path / "measured_for_take_out.py", tmp_path / "test_measured.py"
    module.write_text(
        "def largest(numbers):\n    found = 0\n    shown = 1\n    for number in numbers:\n"
        "        found = max(found, number)\n    while found < 0:\n        found += 1\n    return found\n"
    )
    tests.write_text("from measured_for_take_out import largest\n\n\ndef test_five():\n    assert largest([5]) == 5\n")
    printed = tried(tmp_path, module, tests).splitlines()
    found = [line.partition(":")[2] for line in printed if line.startswith("measured")]
    assert [re.sub("# .*::", "# ", line) for line in found] == [
        "2: found = 0  # test_five",
        "3: shown = 1",
        "4: for number in numbers:  # test_five",
        "5: found = max(found, number)  # test_five",
        "6: while found < 0:",
        "7: found += 1",
        "8: return found  # test_five",
        " 7 statements, 3 are missed by no test",
    ]


def test_reports_test_that_fails_without_mutation(tmp_path: Path) -> None:
    module, tests = tmp_path / "measured_for_take_out.py", tmp_path / "test_measured.py"
    module.write_text("def five():\n    return 5\n")
    tests.write_text(
        "import measured_for_take_out\n\n\ndef test_six():\n    assert measured_for_take_out.five() == 6, 'a reason'\n"
    )
    printed = tried(tmp_path, module, tests)
    assert re.search(r"(?s)fails with nothing taken out: .*::test_six.*AssertionError: a reason", printed)


def tried(folder: Path, module: Path, tests: Path) -> str:
    """Return the output of a trial of the module in a new process."""
    program = f"""
import pathlib, pytest, sys
from tools import take_out
sys.path.insert(0, {str(folder)!r})
take_out.ROOT = pathlib.Path({str(folder)!r})
trial = take_out.Trial([pathlib.Path({str(module)!r})], shows_all=True)
pytest.main(["-q", "-p", "no:cacheprovider", "--capture=sys", {str(tests)!r}], plugins=[trial])
"""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_mutated_packages_and_their_tests_exist() -> None:
    rooms = list(in_rooms())
    names = {module.name for modules, _ in rooms for module in modules}
    assert {"driver.py", "manager.py"} <= names
    assert all((ROOT / each).exists() for _, tests in rooms for each in tests)
