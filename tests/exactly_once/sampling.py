"""Pinned interleavings that run in every `make test`, in addition to the sample of the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

ALWAYS_RUN = "always_run"


def mark_always_run(values: Iterable[int], pinned: Collection[int]) -> list[object]:
    """Mark the pinned values of a parameter: those at which the test fails when a rule of rules.py is removed.

    Of a test with several such parameters, the cases in which all values are pinned run in every `make test`.
    """
    mark = getattr(pytest.mark, ALWAYS_RUN)
    return [pytest.param(value, marks=mark) if value in pinned else value for value in values]
