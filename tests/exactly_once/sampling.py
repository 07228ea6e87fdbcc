"""Pinned interleavings that run in every `make test`, whichever sample of the others is drawn."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest

IN_EVERY_RUN = "in_every_run"


def with_noticing(values: Iterable[int], noticing: Collection[int]) -> list[object]:
    """Mark the parameters at which a test fails when a rule of rules.py is removed.

    With several such parameters, the cases in which all of them are marked run in every `make test`.
    """
    mark = getattr(pytest.mark, IN_EVERY_RUN)
    return [pytest.param(value, marks=mark) if value in noticing else value for value in values]
