"""Functions for the responses of a call, which are a mapping from each key to the final response for that key.

One response may cover several keys. For example, if one broker has responded for the keys `a` and `b`, and another one
for `c`, the mapping is {a: r1, b: r1, c: r2}. The functions parse each response only once. If they parsed a response
with N results for each of its N keys, this would take N * N steps. Responses are not hashable, so the functions tell
them apart by `id`. The ids are unique, because the mapping keeps the responses alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

ResponseT = TypeVar("ResponseT")
ResultT = TypeVar("ResultT")


def find_distinct_responses(responses: Mapping[str, ResponseT]) -> list[ResponseT]:
    """Return each response once, in the order of the keys."""
    return list({id(response): response for response in responses.values()}.values())


def parse_each_response(
    responses: Mapping[str, ResponseT], parse: Callable[[ResponseT], ResultT]
) -> Iterator[tuple[str, ResultT]]:
    """Yield each key with its parsed response, in the order of the keys. Call `parse` once for each response.

    Each key is paired with its own final response. The responses are not merged by key, because another one may contain
    an earlier error of the key, after which the key was retried.
    """
    parsed_responses = {id(response): parse(response) for response in find_distinct_responses(responses)}
    for key, response in responses.items():
        yield key, parsed_responses[id(response)]
