"""Some of the explorer's runs, and that it would find a fault: without a rule, some seed must fail."""

from __future__ import annotations

import pytest

from tests.producer.explorer import explore


@pytest.mark.parametrize("start", range(0, 60, 10))
def test_whatever_the_faults_nothing_acknowledged_is_lost_doubled_or_out_of_order(start: int) -> None:
    for seed in range(start, start + 10):
        explore(seed)
