"""One request: from the frame to the handler of its API, and the answer, as the faults of `control` will have it.

    answer(cluster, control, node, frame, now) -> Reply | Later

A transport (socket_server.py, or the simulated peers of the tests) brings frames and does what the outcome says.
Bytes that are no request end the connection, as a broker ends it. A version that is not spoken does, too, except for
ApiVersions, whose answer in version 0 says what is.
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
from spark_kafka_sink.broker.handlers import handler_module
from spark_kafka_sink.broker.handlers.api_18_api_versions import unsupported_version
from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse, DelayedRequest, RequestOutcome
from spark_kafka_sink.broker.supported_versions import supported_versions
from spark_kafka_sink.errors import DecodeError, UnsupportedVersionError
from spark_kafka_sink.network.frame import FRAME_BYTES_MAX
from spark_kafka_sink.network.system import Buffer
from spark_kafka_sink.protocol.headers import RequestHeader, decode_request, decode_request_header, encode_response
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages import load_response_type
from spark_kafka_sink.protocol.schema import Struct, field_specs

CLOSE = ChannelResponse(action=ChannelAction.CLOSE)

MAX_ARRAY_ELEMENTS = 10 * MAX_PARTITIONS
"""At most this many elements in the arrays of one request: room to name all partitions, and what goes with each."""

_ONE_ERROR = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})
"""APIs whose answers have one error code, in all versions."""

_log = logging.getLogger(__name__)


def handle_request(
    cluster: EmbeddedCluster, control: Control, node: int, frame: memoryview, now: float
) -> RequestOutcome:
    cluster.tick(now)
    try:
        header, _ = decode_request_header(frame)
        if not _is_spoken(cluster, header):
            return _refuse_version(cluster, header)
        request = _decode(frame)
    except (DecodeError, UnsupportedVersionError):
        return CLOSE
    context = RequestContext(cluster, node, header, now, now)
    if control.has_rules:
        touched = list(_touched(cluster, request))
        context.effects = control.effects(node, request, header.client_id, touched)
        if context.effects.delay_before_ms:
            return _later(context, frame, now + context.effects.delay_before_ms)
    return _apply(context, frame, request, now)


def _decode(frame: memoryview) -> Message:
    return decode_request(frame, MAX_ARRAY_ELEMENTS)[1]


def _later(
    context: RequestContext, frame: memoryview, deadline_ms: float, change_count: int | None = None
) -> DelayedRequest:
    """A request that waits is kept as it came: its objects would take ten times the memory, and thousands may wait."""
    return DelayedRequest(deadline_ms, lambda then: _apply(context, frame, _decode(frame), then), change_count)


def _apply(context: RequestContext, frame: memoryview, request: Message, now: float) -> RequestOutcome:
    effects = context.effects
    if not effects.apply:
        return CLOSE if effects.answer is ResponseFault.DROP else ChannelResponse(action=ChannelAction.KEEP_MUTED)
    context.now = now
    change_count = context.cluster.change_count
    try:
        result = handler_module(request.API_KEY).handle(context, request)
    except ApiError as refusal:
        result = _refused(request, refusal)
    if isinstance(result, DelayedResponse):
        return _later(context, frame, result.deadline_ms, change_count)
    if isinstance(result, NoResponse):
        return CLOSE if result.close else ChannelResponse()
    for error in effects.errors:
        if error.after_applying:
            _blame(context, result, error)
    if effects.throttle_ms and "throttle_time_ms" in field_specs(type(result)):
        result.throttle_time_ms = effects.throttle_ms
    reply = _reply(context.header, result, effects)
    return DelayedRequest(now + effects.delay_after_ms, lambda _: reply) if effects.delay_after_ms else reply


def _refused(request: Message, refusal: ApiError) -> Message | NoResponse:
    """The answer to a request that is refused as a whole: its error, or the end of the connection if it has none."""
    _log.warning("%s: %s", request.API_KEY.name, refusal)
    if request.API_KEY not in _ONE_ERROR:
        return NoResponse(close=True)
    answer = load_response_type(request.API_KEY)()
    answer.error_code = refusal.code  # type: ignore[attr-defined]
    return answer


def _reply(header: RequestHeader, response: Message, effects: FaultEffects) -> ChannelResponse:
    wrong = effects.answer is ResponseFault.WRONG_CORRELATION_ID
    correlation_id = header.correlation_id + 1 if wrong else header.correlation_id
    segments = encode_response(response, header.api_version, correlation_id)
    size = sum(len(segment) for segment in segments)
    if size > FRAME_BYTES_MAX:
        _log.error("%s: an answer of %d bytes is not sent, no client would take it", response.API_KEY.name, size)
        return CLOSE
    if effects.answer is ResponseFault.CUT:
        return ChannelResponse(raw_bytes=_cut(segments, effects.cut_at), action=ChannelAction.CLOSE)
    if effects.answer is ResponseFault.RAW:
        return ChannelResponse(
            raw_bytes=effects.raw_bytes, action=ChannelAction.CLOSE if effects.close_after_raw else ChannelAction.UNMUTE
        )
    if effects.answer is ResponseFault.DROP:
        return CLOSE
    if effects.answer is ResponseFault.NEVER:
        return ChannelResponse(action=ChannelAction.KEEP_MUTED)
    return ChannelResponse(frame=segments)


def _cut(segments: Sequence[Buffer], at: float) -> bytes:
    frame = b"".join(segments)
    whole = struct.pack(">i", len(frame)) + frame
    return whole[: max(1, min(len(whole) - 1, int(len(whole) * at)))]


def _is_spoken(cluster: EmbeddedCluster, header: RequestHeader) -> bool:
    spoken = supported_versions(cluster.config.version_limits)
    return header.api_key in spoken and header.api_version in spoken[ApiKey(header.api_key)]


def _refuse_version(cluster: EmbeddedCluster, header: RequestHeader) -> ChannelResponse:
    if header.api_key != ApiKey.API_VERSIONS:
        return CLOSE
    return ChannelResponse(frame=encode_response(unsupported_version(cluster), 0, header.correlation_id))


def _touched(cluster: EmbeddedCluster, request: Message) -> Iterator[tuple[str, int | None]]:
    """The topics and partitions that a request names, whatever its fields are called."""
    lists = ("topic_data", "topics", "v3_and_below_topics")
    topics: list[object] = [t for name in lists for t in getattr(request, name, None) or ()]
    for transaction in getattr(request, "transactions", ()):
        topics += transaction.topics
    for topic in topics:
        name = _topic_name(cluster, topic)
        partitions = getattr(topic, "partition_data", None) or getattr(topic, "partitions", None)
        for partition in partitions or (None,):
            yield name, _index(partition)


def _topic_name(cluster: EmbeddedCluster, topic: object) -> str:
    """Empty for what is no topic, or one that does not exist."""
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    if name:
        return str(name)
    topic_id = getattr(topic, "topic_id", None)
    found = None if topic_id is None else cluster.find_topic_by_id(topic_id)
    return found.name if found is not None else ""


def _index(partition: object) -> int | None:
    if partition is None or isinstance(partition, int):
        return partition
    names = ("index", "partition", "partition_index")
    return next((getattr(partition, name) for name in names if hasattr(partition, name)), None)


def _blame(context: RequestContext, message: Struct, error: InjectedError) -> None:
    """Set the error codes of an answer, as far as the error concerns them and this version of the answer has them."""
    if not error.concerns(_topic_name(context.cluster, message) or None, _index(message)):
        return
    specs = field_specs(type(message))
    for field in ("error_code", "partition_error_code"):
        if field in specs and context.version in specs[field].versions:
            setattr(message, field, error.code)
    for field in specs:
        value = getattr(message, field)
        for element in value if isinstance(value, list) else ():
            if isinstance(element, Struct):
                _blame(context, element, error)
