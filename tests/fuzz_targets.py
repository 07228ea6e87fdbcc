"""Decoders that `make fuzz` tests. Every new decoder of foreign bytes must be added here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from spark_kafka_sink.broker.cluster import ClusterConfig, EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.kafka_apis import handle_request
from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import AuthenticationError, ConfigurationError, DecodeError, UnsupportedVersionError
from spark_kafka_sink.network.frame import FrameReader
from spark_kafka_sink.network.security.keystores import read_store
from spark_kafka_sink.network.system import find_host_error
from spark_kafka_sink.protocol.headers import (
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
    peek_correlation_id,
)
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import list_supported_api_keys, load_request_type
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsResponse
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest, MetadataResponse
from spark_kafka_sink.protocol.primitives import Reader
from spark_kafka_sink.reader.fetched import iterate_visible_rows
from spark_kafka_sink.records.batch_slicing import (
    build_single_partition_slices,
    find_timestamp_range,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.compression import Codec, compress, decompress
from spark_kafka_sink.records.decoder import decode_batches, decode_records, find_keyless_records, parse_batches
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import HEADER_BYTES, parse_header
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds
from spark_kafka_sink.sasl.jaas import parse_jaas_config
from spark_kafka_sink.sasl.oauthbearer import (
    OauthBearerClient,
    OauthBearerServer,
    build_unsecured_token,
    validate_unsecured_token,
)
from spark_kafka_sink.sasl.plain import PlainServer
from spark_kafka_sink.sasl.scram import ScramClient, ScramCredential, build_scram_credential
from spark_kafka_sink.sasl.scram_server import ScramServer
from tests.fuzz import Target
from tests.protocol.kafka_python import MESSAGE_VERSIONS
from tests.protocol.populated_messages import build_populated
from tests.records.batch_headers import build_header

MAX_DECOMPRESSED_BYTES = 1 << 20
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"a\" password='b';"


def all_targets() -> list[Target]:
    return [*protocol_targets(), *record_targets(), *network_targets(), *broker_targets(), *sasl_targets()]


def protocol_targets() -> Iterator[Target]:
    for message_type, version in MESSAGE_VERSIONS:
        seeds = [_encode(build_populated(message_type, version), version), _encode(message_type(), version)]
        decode = partial(_decode_message, message_type, version)
        yield Target(f"{message_type.__name__} v{version}", decode, seeds, (DecodeError,))
    request = b"".join(encode_request(build_populated(MetadataRequest, 12), 12, 7, "me"))
    response = b"".join(encode_response(build_populated(MetadataResponse, 12), 12, 7))
    unknown = (DecodeError, UnsupportedVersionError)
    yield Target("request header", decode_request_header, [request], (DecodeError,))
    yield Target("request", decode_request, [request], unknown)
    yield Target("response", partial(_decode_response, MetadataResponse, 12), [response], (DecodeError,))
    yield Target("ApiVersions", partial(_decode_response, ApiVersionsResponse, 3), [response], (DecodeError,))
    yield Target("correlation id", peek_correlation_id, [response], (DecodeError,))
    varints = [b"\x01", b"\xff\xff\x01"]
    yield Target("unsigned_varint", partial(_read, Reader.read_unsigned_varint), varints, (DecodeError,))


def record_targets() -> Iterator[Target]:
    batch = _batch()
    yield Target("batch header", parse_header, [batch], (DecodeError,))
    yield Target("batches", parse_batches, [batch, batch * 2], (DecodeError,))
    yield Target("batches to columns", _decode_batches, [batch, batch * 2], (DecodeError,))
    # Without the checksum, which almost every mutation would break.
    body = partial(_decode_records, batch[:HEADER_BYTES])
    yield Target("records", body, [batch[HEADER_BYTES:]], (DecodeError,))
    for codec in Codec:
        decode = partial(_decompress, codec)
        yield Target(f"decompress {codec.name}", decode, [bytes(compress(codec, [batch * 20]))], (DecodeError,))


def network_targets() -> Iterator[Target]:
    yield Target("frame", _read_frames, [b"\0\0\0\x05hello\0\0\0\0", b"HTTP/1.1 400 Bad"], (DecodeError,))
    for name in ("PEM", "JKS", "PKCS12"):
        seeds = [b"\xfe\xed\xfe\xed" + bytes(3) + b"\x02" + bytes(60), b"\x30\x82\x01\x00" + bytes(40)]
        seeds.append(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
        decode = partial(read_store, type_name=name, password=None, key_password="k")
        yield Target(f"store {name}", decode, seeds, (ConfigurationError,))
    yield Target("jaas", lambda data: parse_jaas_config(data.decode("latin-1")), [JAAS.encode()], (ConfigurationError,))


def broker_targets() -> Iterator[Target]:
    """Yield the request handling of the embedded broker, and decoders of fetched data."""
    cluster = EmbeddedCluster(ClusterConfig(auto_create_topics=True, max_partitions=50), topics={"t": 2})
    control = Control(cluster, 0)
    for api in list_supported_api_keys():
        request_type = load_request_type(api)
        for version in {request_type.VERSIONS.min, request_type.VERSIONS.max}:
            seed = b"".join(encode_request(build_populated(request_type, version), version, 7, "me"))
            yield Target(f"broker {api.name} v{version}", partial(_handle_request, cluster, control), [seed], ())
    batch = _batch()
    yield Target("visible rows", _decode_visible_rows, [batch, batch * 2], (DecodeError,))
    yield Target(
        "records, checked", partial(_compare_with_decoder, batch[:HEADER_BYTES]), [batch[HEADER_BYTES:]], (DecodeError,)
    )
    yield Target("sanitize", _sanitize, [b"no \x1b[2J\n", "stra\u00dfe\u202e".encode()], ())


def sasl_targets() -> Iterator[Target]:
    rejections = (AuthenticationError,)
    credential = build_scram_credential("SCRAM-SHA-256", "secret", salt=b"salt")
    token = build_unsecured_token({"sub": "alice", "exp": 2_000_000_000})
    first = b"n,,n=alice,r=abcdef"
    challenge = b"r=fixed-and-more,s=c2FsdA==,i=4096"
    bearer = OauthBearerClient(token, {"pool": "p"}).start()
    yield Target("PLAIN server", lambda data: PlainServer({"a": "b"}).step(data), [b"\0a\0b"], rejections)
    yield Target(
        "SCRAM server",
        lambda data: ScramServer("SCRAM-SHA-256", lambda name: credential).step(data),
        [first],
        rejections,
    )
    yield Target(
        "SCRAM server, last message", lambda data: _scram_last(credential, data), [b"c=biws,r=f,p=cA=="], rejections
    )
    yield Target("SCRAM client", _scram_client, [challenge], rejections)
    yield Target(
        "OAUTHBEARER server",
        lambda data: OauthBearerServer(lambda text: validate_unsecured_token(text, now_s=0)).step(data),
        [bearer],
        rejections,
    )
    yield Target("OAUTHBEARER client", _oauth_client, [b"", b'{"status":"invalid_token"}'], rejections)
    yield Target(
        "unsecured token",
        lambda data: validate_unsecured_token(data.decode("latin-1"), now_s=0),
        [token.encode()],
        rejections,
    )


def _encode(message: Message, version: int) -> bytes:
    return b"".join(message.encode(version))


def _decode_message(message_type: type[Message], version: int, data: bytes) -> object:
    return message_type.decode(data, version)


def _decode_response(message_type: type[Message], version: int, data: bytes) -> object:
    return decode_response(data, message_type, version)


def _read(read: Callable[[Reader], int], data: bytes) -> int:
    return read(Reader(data))


def _batch() -> bytes:
    """Encode a batch with nulls, headers and values of several sizes."""
    rows = 20
    headers = pa.array(
        [[] if row % 3 else [{"key": "k", "value": None}, {"key": "", "value": b"v" * row}] for row in range(rows)],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    columns = RecordColumns(
        pa.array([None if row % 5 == 0 else b"v" * row * 3 for row in range(rows)], pa.binary()),
        key=pa.array([None if row % 2 else f"key {row}".encode() for row in range(rows)], pa.binary()),
        headers=headers,
    )
    now = 1_700_000_000_000
    slices = split_into_batches(
        compute_record_size_bounds(columns),
        build_single_partition_slices(rows),
        1 << 20,
        find_timestamp_range(columns, now),
    )
    (encoded,) = encode_records(columns, slices, now)
    header = build_header(
        segments=[encoded.data],
        record_count=rows,
        base_timestamp=encoded.base_timestamps[0],
        max_timestamp=encoded.max_timestamps[0],
    )
    return bytes(header) + bytes(encoded.data)


def _decode_batches(data: bytes) -> object:
    return list(decode_batches(data, max_bytes=MAX_DECOMPRESSED_BYTES))


def _decode_records(header: bytes, data: bytes) -> object:
    return decode_records(parse_header(header), data, max_bytes=MAX_DECOMPRESSED_BYTES)


def _compare_with_decoder(header: bytes, data: bytes) -> object:
    """Check that find_keyless_records and decode_records accept the same inputs."""
    decodes = True
    try:
        decode_records(parse_header(header), data, max_bytes=MAX_DECOMPRESSED_BYTES)
    except DecodeError:
        decodes = False
    try:
        find_keyless_records(parse_header(header), data, max_bytes=MAX_DECOMPRESSED_BYTES)
    except DecodeError:
        assert not decodes
        raise
    assert decodes
    return None


def _handle_request(cluster: EmbeddedCluster, control: Control, data: bytes) -> object:
    return handle_request(cluster, control, 0, memoryview(bytearray(data)), 0.0)


def _decode_visible_rows(data: bytes) -> object:
    fetched_parts = iterate_visible_rows(data, None, topic="t", partition=0, start=0, stop=1 << 40)
    return [part.rows.to_pylist() for part in fetched_parts]


def _sanitize(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    assert sanitize(text).isprintable()
    assert find_host_error(text) is not None or text.isprintable()


def _decompress(codec: Codec, data: bytes) -> object:
    return decompress(codec, data, MAX_DECOMPRESSED_BYTES)


def _read_frames(data: bytes) -> None:
    reader = FrameReader()
    while data:
        while reader.next_frame(1 << 20) is not None:
            pass
        space = reader.prepare_buffer()
        size = min(len(space), len(data))
        space[:size] = data[:size]
        reader.advance(size)
        data = data[size:]
    while reader.next_frame(1 << 20) is not None:
        pass


def _scram_last(credential: ScramCredential, data: bytes) -> bytes:
    server = ScramServer("SCRAM-SHA-256", lambda name: credential, nonce="f")
    server.step(b"n,,n=alice,r=abc")
    return server.step(data)


def _scram_client(data: bytes) -> object:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", nonce="fixed")
    client.start()
    return client.step(data)


def _oauth_client(data: bytes) -> object:
    client = OauthBearerClient("token")
    client.start()
    return client.step(data)
