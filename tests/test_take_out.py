"""What tests/take_out.py takes out: each statement once, and nothing that is no statement of a function."""

from __future__ import annotations

import ast

from tests.take_out import statements, without

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
