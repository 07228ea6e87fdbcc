"""Functions for the responses of a call: a mapping from each key to the final response for that key.

A response about N keys occurs N times in the mapping. The functions process each response only once, because processing
all N results for each of the N keys would take N * N steps. Responses are not hashable, so the functions tell them
apart by `id`. The ids are unique, because the mapping keeps the responses alive.
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

    The responses are not merged by key, because a response may contain the error of a key that was retried later.
    """
    parsed_responses = {id(response): parse(response) for response in find_distinct_responses(responses)}
    for key, response in responses.items():
        yield key, parsed_responses[id(response)]
