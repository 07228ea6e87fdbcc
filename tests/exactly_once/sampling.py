"""Pinned interleavings that run in every `make test`; of the others, it runs one of each test."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeVar

import pytest

ALWAYS_RUN = "always_run"
T = TypeVar("T")


def mark_always_run(values: Iterable[T], pinned: Collection[T]) -> list[object]:
    """Mark the pinned values of a parameter: those at which the test fails when a rule of rules.py is removed.

    A tuple is a value of several parameters. Of a test with several such calls, the cases in which all values are
    pinned run in every `make test`.
    """
    mark = getattr(pytest.mark, ALWAYS_RUN)
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark) if value in pinned else value
        for value in values
    ]
