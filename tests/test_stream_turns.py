"""The overhead that one stream adds to another's micro-batches.

It is the median of differences within pairs and not a difference of medians, so that a machine that is slower for a
while slows down both streams and adds nothing.
"""

from __future__ import annotations

from integration.benchmarks.stream_turns import compute_added_time, split_into_rounds


def _blocks(*times: float) -> list[dict[str, float]]:
    return [{"trigger": time} for time in times]


def test_overhead_is_the_median_of_neighbour_differences() -> None:
    slower_for_a_while = compute_added_time(_blocks(120, 520, 525, 120), _blocks(100, 500, 500, 100), "trigger")
    assert slower_for_a_while.median == 20
    assert slower_for_a_while.pairs == 4


def test_quartiles_show_spread_of_overhead() -> None:
    steady = compute_added_time(_blocks(118, 120, 121, 122, 124), _blocks(100, 100, 100, 100, 100), "trigger")
    noisy = compute_added_time(_blocks(60, 80, 120, 180, 300), _blocks(100, 100, 100, 100, 100), "trigger")
    assert steady.quartiles == (19.0, 23.0)
    assert str(noisy) == "+20 ms, quartiles of 5 pairs -30 and +140"


def test_round_is_the_median_of_its_blocks() -> None:
    seen = {"once": _blocks(1, 2, 9, 4, 5, 90)}
    assert split_into_rounds(seen, 2) == {"once": _blocks(2, 5)}
