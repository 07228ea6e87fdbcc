"""Request handling: decode a frame, apply injected faults, call the API's handler and encode the response.

    handle_request(cluster, control, node_id, frame, now_ms) -> ChannelResponse | DelayedRequest

A transport (socket_server.py, or the tests' simulated cluster) passes in frames and carries out the outcomes. Like a
real broker, it closes the connection if a frame cannot be decoded or its version is not supported. The exception is
ApiVersions: if its version is not supported, the response has version 0 and lists the supported versions.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.broker.cluster import MAX_PARTITIONS, EmbeddedCluster
from spark_kafka_sink.broker.context import DelayedResponse, NoResponse, RequestContext
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.fault_rules import FaultEffects, InjectedError, ResponseFault
from spark_kafka_sink.broker.handlers import load_handler
from spark_kafka_sink.broker.handlers.api_18_api_versions import build_unsupported_version_response
from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse, DelayedRequest, RequestOutcome
from spark_kafka_sink.broker.supported_versions import select_supported_versions
from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.network.frame import DEFAULT_MAX_FRAME_BYTES
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.protocol.headers import RequestHeader, decode_request, decode_request_header, encode_response
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import load_response_type
from spark_kafka_sink.protocol.schema import Struct, get_field_specs

CLOSE_CONNECTION = ChannelResponse(action=ChannelAction.CLOSE)

MAX_ARRAY_ELEMENTS = 10 * MAX_PARTITIONS
"""Maximum number of array elements in one request: enough to name all partitions, with some fields for each."""

_SINGLE_ERROR_CODE_APIS = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})
"""APIs whose responses have exactly one error code in every version."""

_log = logging.getLogger(__name__)


def handle_request(
    cluster: EmbeddedCluster, control: Control, node_id: int, frame: memoryview, now_ms: float
) -> RequestOutcome:
    """Handle a request frame that a client sent to the node with this id.

    Return what the transport must do now (write a response, close the connection, or neither), or a DelayedRequest to
    resume later.

    `now_ms`: monotonic time.
    """
    # Abort timed-out transactions first, so that the handler does not see them.
    cluster.abort_due_transactions(now_ms)
    try:
        header, _ = decode_request_header(frame)
        if not _is_version_supported(cluster, header):
            return _reject_version(cluster, header)
        request = _decode(frame)
    except (DecodeError, UnsupportedVersionError):
        return CLOSE_CONNECTION
    context = RequestContext(cluster, node_id, header, received_ms=now_ms, now_ms=now_ms)
    if control.has_rules:
        topic_partitions = list(_find_topic_partitions(cluster, request))
        context.effects = control.collect_effects(node_id, request, header.client_id, topic_partitions)
        if context.effects.delay_before_ms:
            return _delay(context, frame, now_ms + context.effects.delay_before_ms)
    return _execute(context, frame, request, now_ms)


def _decode(frame: memoryview) -> Message:
    return decode_request(frame, MAX_ARRAY_ELEMENTS)[1]


def _delay(
    context: RequestContext, frame: memoryview, deadline_ms: float, change_count: int | None = None
) -> DelayedRequest:
    """Delay the execution of a request.

    Thousands of requests may be delayed at once, and a decoded request needs ten times the memory of its frame. So only
    the frame is kept, and it is decoded again later.
    """
    return DelayedRequest(deadline_ms, lambda now_ms: _execute(context, frame, _decode(frame), now_ms), change_count)


def _execute(context: RequestContext, frame: memoryview, request: Message, now_ms: float) -> RequestOutcome:
    """Call the handler and apply the injected faults that follow its execution. Delayed requests resume here."""
    effects = context.effects
    if not effects.should_execute:  # an injected fault replaces the execution and the response
        is_dropped = effects.response_fault is ResponseFault.DROP
        return CLOSE_CONNECTION if is_dropped else ChannelResponse(action=ChannelAction.KEEP_MUTED)
    context.now_ms = now_ms
    # Read before the handler runs, so that a change during its execution wakes a delayed request.
    change_count = context.cluster.change_count
    try:
        result = load_handler(request.API_KEY).handle(context, request)
    except ApiError as error:
        result = _build_error_response(request, error)
    if isinstance(result, DelayedResponse):
        return _delay(context, frame, result.deadline_ms, change_count)
    if isinstance(result, NoResponse):
        return CLOSE_CONNECTION if result.should_close else ChannelResponse()
    _inject_into_message(context, result)
    response = _to_channel_response(context.header, result, effects)
    if effects.delay_after_ms:
        return DelayedRequest(now_ms + effects.delay_after_ms, lambda _: response)
    return response


def _inject_into_message(context: RequestContext, response: Message) -> None:
    """Set the injected error codes and the injected throttle time in a response."""
    effects = context.effects
    for injected_error in effects.errors:
        if injected_error.execute_first:  # the handler has not executed requests with other injected errors
            _set_error_codes(context, response, injected_error)
    if effects.throttle_ms and "throttle_time_ms" in get_field_specs(type(response)):
        response.throttle_time_ms = effects.throttle_ms  # type: ignore[attr-defined]


def _build_error_response(request: Message, error: ApiError) -> Message | NoResponse:
    """Build the response to a request that was rejected as a whole.

    If the API's responses have no error code for the whole request, return a NoResponse that closes the connection.
    """
    _log.warning("Rejected a request of %s: %s", request.API_KEY.name, error)
    if request.API_KEY not in _SINGLE_ERROR_CODE_APIS:
        return NoResponse(should_close=True)
    response = load_response_type(request.API_KEY)()
    response.error_code = error.code  # type: ignore[attr-defined]
    return response


def _to_channel_response(header: RequestHeader, response: Message, effects: FaultEffects) -> ChannelResponse:
    """Encode a response and apply the injected response fault."""
    fault = effects.response_fault
    correlation_id = header.correlation_id
    if fault is ResponseFault.WRONG_CORRELATION_ID:
        correlation_id += 1
    segments = encode_response(response, header.api_version, correlation_id)
    size = sum(len(segment) for segment in segments)
    if size > DEFAULT_MAX_FRAME_BYTES:
        _log.error("Closed a connection: the %s response of %d bytes is too long", response.API_KEY.name, size)
        return CLOSE_CONNECTION
    if fault is ResponseFault.CUT:
        return ChannelResponse(raw_bytes=_truncate(segments, effects.cut_fraction), action=ChannelAction.CLOSE)
    if fault is ResponseFault.RAW_BYTES:
        action = ChannelAction.CLOSE if effects.should_close_after_raw_bytes else ChannelAction.UNMUTE
        return ChannelResponse(raw_bytes=effects.raw_bytes, action=action)
    if fault is ResponseFault.DROP:
        return CLOSE_CONNECTION
    if fault is ResponseFault.NEVER:
        return ChannelResponse(action=ChannelAction.KEEP_MUTED)
    return ChannelResponse(frame=segments)


def _truncate(segments: Sequence[Buffer], fraction: float) -> bytes:
    """Return the start of a frame, including its length prefix: at least one byte, but never the whole frame."""
    frame = b"".join(segments)
    data = struct.pack(">i", len(frame)) + frame
    return data[: max(1, min(len(data) - 1, int(len(data) * fraction)))]


def _is_version_supported(cluster: EmbeddedCluster, header: RequestHeader) -> bool:
    versions = select_supported_versions(cluster.config.version_limits)
    return header.api_key in versions and header.api_version in versions[ApiKey(header.api_key)]


def _reject_version(cluster: EmbeddedCluster, header: RequestHeader) -> ChannelResponse:
    """Respond to ApiVersions with the supported versions. For any other API, close the connection."""
    if header.api_key != ApiKey.API_VERSIONS:
        return CLOSE_CONNECTION
    response = build_unsupported_version_response(cluster)
    return ChannelResponse(frame=encode_response(response, version=0, correlation_id=header.correlation_id))


# --- topics and partitions in any message, found by field name


def _find_topic_partitions(cluster: EmbeddedCluster, request: Message) -> Iterator[tuple[str, int | None]]:
    """Yield the topics and partitions in a request of any API. A partition is None if the topic has none."""
    topic_array_fields = ("topic_data", "topics", "v3_and_below_topics")
    topics: list[object] = [topic for name in topic_array_fields for topic in getattr(request, name, None) or ()]
    # From v4 on, AddPartitionsToTxn lists its topics by transaction.
    for transaction in getattr(request, "transactions", ()):
        topics += transaction.topics
    for topic in topics:
        name = _find_topic_name(cluster, topic)
        partitions = getattr(topic, "partition_data", None) or getattr(topic, "partitions", None)
        for partition in partitions or (None,):
            yield name, _find_partition_index(partition)


def _find_topic_name(cluster: EmbeddedCluster, struct: object) -> str:
    """Return the name of a struct's topic, or "" if it has neither a name nor the id of a known topic."""
    name = getattr(struct, "name", None) or getattr(struct, "topic", None)
    if name:
        return str(name)
    topic_id = getattr(struct, "topic_id", None)
    topic = None if topic_id is None else cluster.find_topic_by_id(topic_id)
    return topic.name if topic is not None else ""


def _find_partition_index(partition: object) -> int | None:
    """Return the partition index that a struct contains, or None. An index itself is returned unchanged."""
    if partition is None or isinstance(partition, int):
        return partition
    names = ("index", "partition", "partition_index")
    return next((getattr(partition, name) for name in names if hasattr(partition, name)), None)


def _set_error_codes(context: RequestContext, message: Struct, error: InjectedError) -> None:
    """Set the injected error code in a struct of a response, and recursively in the structs of its arrays.

    A struct of a topic or partition that the error does not apply to is skipped, with everything in it. A struct that
    names neither, such as the response itself, is included. Only fields that the request's version has are set.
    """
    if not error.applies_to(_find_topic_name(context.cluster, message) or None, _find_partition_index(message)):
        return
    specs = get_field_specs(type(message))
    for field in ("error_code", "partition_error_code"):
        if field in specs and context.version in specs[field].versions:
            setattr(message, field, error.code)
    for field in specs:
        value = getattr(message, field)
        for element in value if isinstance(value, list) else ():
            if isinstance(element, Struct):
                _set_error_codes(context, element, error)
