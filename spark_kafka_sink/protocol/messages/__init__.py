"""The messages of the APIs that we speak, one file for each API, in both directions.

A file is named for its API, and its messages too: ApiKey.INIT_PRODUCER_ID is InitProducerIdRequest and
InitProducerIdResponse in init_producer_id.py. It is imported when it is needed: a process that only writes needs four.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from spark_kafka_sink.protocol.message import ApiKey, Message


@cache
def spoken_api_keys() -> tuple[ApiKey, ...]:
    """The API keys that have a file in this package."""
    return tuple(key for key in ApiKey if find_spec(f"{__name__}.{key.name.lower()}") is not None)


@cache
def request_type(api_key: ApiKey) -> type[Message]:
    return _message_type(api_key, "Request")


@cache
def response_type(api_key: ApiKey) -> type[Message]:
    return _message_type(api_key, "Response")


def _message_type(api_key: ApiKey, direction: str) -> type[Message]:
    name = "".join(word.capitalize() for word in api_key.name.split("_"))
    found: type[Message] = getattr(import_module(f"{__name__}.{api_key.name.lower()}"), name + direction)
    return found
