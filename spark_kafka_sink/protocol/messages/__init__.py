"""Requests and responses of the supported APIs, one module for each API.

Modules and classes are named after the API key: init_producer_id.py has InitProducerIdRequest and
InitProducerIdResponse for ApiKey.INIT_PRODUCER_ID. A module is imported on first use, because a process that only
writes needs four modules. Structs have the names of Kafka's JSON definitions. If several messages use the same name,
the message name precedes it: the PartitionData of FetchResponse is FetchResponsePartitionData.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from spark_kafka_sink.protocol.message import ApiKey, Message


@cache
def list_supported_api_keys() -> tuple[ApiKey, ...]:
    """Return the API keys that have a module in this package."""
    return tuple(key for key in ApiKey if find_spec(f"{__name__}.{key.name.lower()}") is not None)


@cache
def load_request_type(api_key: ApiKey) -> type[Message]:
    """Return the class of an API's request. The API must be in `list_supported_api_keys`."""
    return _load_message_type(api_key, "Request")


@cache
def load_response_type(api_key: ApiKey) -> type[Message]:
    """Return the class of an API's response. The API must be in `list_supported_api_keys`."""
    return _load_message_type(api_key, "Response")


def _load_message_type(api_key: ApiKey, suffix: str) -> type[Message]:
    name = "".join(word.capitalize() for word in api_key.name.split("_"))
    message_type: type[Message] = getattr(import_module(f"{__name__}.{api_key.name.lower()}"), name + suffix)
    return message_type
