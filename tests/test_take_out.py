"""What tests/take_out.py takes out: each statement once, and nothing that is no statement of a function."""

from __future__ import annotations

import ast

from tests.take_out import ROOT, in_rooms, statements, without

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


def test_each_statement_of_a_function_is_taken_out_once() -> None:
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


def test_what_is_left_is_a_module_without_that_statement() -> None:
    for statement in statements(SOURCE):
        left = without(SOURCE, statement)
        ast.parse(left)
        assert left.count("pass") == 1
        assert len(left.splitlines()) == len(SOURCE.splitlines()) - (statement.last - statement.first)


def test_the_rooms_are_there_and_a_modules_own_tests_come_first() -> None:
    tests_of = {str(module): tests for module, tests in in_rooms()}
    assert tests_of["spark_kafka_sink/exactly_once/late_attempts.py"] == [
        "tests/exactly_once/test_late_attempts.py",
        "tests/exactly_once",
    ]
    assert any(module.startswith("spark_kafka_sink/producer/transactions/") for module in tests_of)
    assert all((ROOT / each).exists() for tests in tests_of.values() for each in tests)
