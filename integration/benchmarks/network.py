"""Benchmark of the Selector's throughput, compared with a `sendall` loop: python -m integration.benchmarks.network

Segments of 1 MB are sent over loopback to a process that reads and discards them. Selector and `sendall` take turns, so
that a slower machine slows both of them down. The ratio is the median of the ratios of the rounds. A second table shows
fairness: the throughput of two peers while a third one reads nothing, as a share of their throughput without the third.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.support.certificates import write_certificates
from spark_kafka_sink.network.authenticator import NoAuthentication
from spark_kafka_sink.network.channel import ChannelBuilder, KafkaChannel
from spark_kafka_sink.network.channel_builders import build_plaintext_channel
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import OS_DEFAULT_BUFFER, ByteSocket, OperatingSystem, SocketAddress
from spark_kafka_sink.network.tls import TlsTransport

MEGABYTE = 1024 * 1024
KAFKA_SEND_BUFFER = 128 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="per round and method")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        certificates = Path(folder)
        write_certificates(certificates)
        print("| transport | send.buffer.bytes | bare sendall, MB/s | Selector, MB/s | ratio |")
        print("|---|---|---|---|---|")
        for tls in (False, True):
            for send_buffer in (OS_DEFAULT_BUFFER, KAFKA_SEND_BUFFER):
                print(
                    measure_throughput_row(certificates, tls, send_buffer, arguments.megabytes, arguments.rounds),
                    flush=True,
                )
    print()
    print("| two of three peers, the third stalled | share of what they get without it |")
    print("|---|---|")
    rounds = measure_fairness_rounds(arguments.megabytes / 2000)
    shares = [with_third / alone for alone, with_third in itertools.islice(rounds, arguments.rounds)]
    print(f"| median of {arguments.rounds} rounds | {statistics.median(shares):.2f} |")


def measure_throughput_row(certificates: Path, tls: bool, send_buffer: int, megabytes: int, rounds: int) -> str:
    """Measure one transport with one size of the send buffer, and return a row of the table."""
    client = _create_client_context(certificates) if tls else None
    sendall_speeds, selector_speeds, ratios = [], [], []
    with run_discard_server(certificates if tls else None) as port:
        _measure_sendall(port, client, send_buffer, 50), _measure_selector(port, client, send_buffer, 50)
        for _ in range(rounds):
            sendall_speeds.append(_measure_sendall(port, client, send_buffer, megabytes))
            selector_speeds.append(_measure_selector(port, client, send_buffer, megabytes))
            ratios.append(selector_speeds[-1] / sendall_speeds[-1])
    name = "TLS 1.3" if tls else "plaintext"
    buffer = "OS default" if send_buffer == OS_DEFAULT_BUFFER else f"{send_buffer}"
    speeds = f"{statistics.median(sendall_speeds):.0f} | {statistics.median(selector_speeds):.0f}"
    return f"| {name} | {buffer} | {speeds} | {statistics.median(ratios):.2f} |"


def _measure_sendall(port: int, context: ssl.SSLContext | None, send_buffer: int, megabytes: int) -> float:
    """Send segments with `sendall`. Return the throughput in megabytes per second."""
    segment = os.urandom(MEGABYTE)
    header = len(segment).to_bytes(4, "big")
    with socket.socket() as plain:
        if send_buffer != OS_DEFAULT_BUFFER:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        plain.connect(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock = context.wrap_socket(plain, server_hostname="localhost") if context else plain
        started = time.perf_counter()
        for _ in range(megabytes):
            sock.sendall(header)
            sock.sendall(segment)
        _finish(sock)
        return megabytes / (time.perf_counter() - started)


def _finish(sock: socket.socket) -> None:
    """Send an empty frame, and wait for the empty frame that the peer sends when it has read everything."""
    sock.sendall((0).to_bytes(4, "big"))
    sock.recv(4)


def _measure_selector(port: int, context: ssl.SSLContext | None, send_buffer: int, megabytes: int) -> float:
    """Send segments with a Selector. Return the throughput in megabytes per second."""
    segment = os.urandom(MEGABYTE)
    selector = _connect_selector(
        port, ["a"], _build_tls_channel_builder(context) if context else build_plaintext_channel, send_buffer
    )
    started = time.perf_counter()
    for _ in range(megabytes):
        _send_one(selector, [segment])
    _send_one(selector, [])
    while not selector.completed_receives:
        selector.poll(1000)
    elapsed = time.perf_counter() - started
    selector.close()
    return megabytes / elapsed


def _send_one(selector: Selector, segments: list[bytes]) -> None:
    selector.send(NetworkSend("a", segments))
    selector.poll(1000)
    while not selector.completed_sends:
        selector.poll(1000)


def _connect_selector(port: int, ids: list[str], channels: ChannelBuilder, send_buffer: int) -> Selector:
    """Return a Selector whose channels, one for each id, are connected to the port and ready."""
    system = OperatingSystem()
    selector = Selector(system, channel_builder=channels)
    for channel_id in ids:
        address = SocketAddress("localhost", port, socket.AF_INET, ("127.0.0.1", port))
        selector.connect(channel_id, address, send_buffer_bytes=send_buffer)
    while not all(selector.is_channel_ready(channel_id) for channel_id in ids):
        selector.poll(1000)
    return selector


# --- fairness


def measure_fairness_rounds(seconds: float) -> Iterator[tuple[float, float]]:
    """Yield the megabytes written to two peers in `seconds`: alone, and beside a third peer that reads nothing.

    The iterator never ends.
    """
    with run_discard_server(None) as port, socket.socket() as stalled_listener:
        stalled_listener.bind(("127.0.0.1", 0))
        stalled_listener.listen()
        while True:
            yield (
                _measure_two_peers(port, None, seconds),
                _measure_two_peers(port, stalled_listener.getsockname()[1], seconds),
            )


def _measure_two_peers(port: int, stalled_port: int | None, seconds: float) -> float:
    """Return the megabytes that were written to two peers in this time."""
    segment = os.urandom(MEGABYTE)
    selector = _connect_selector(port, ["a", "b"], build_plaintext_channel, KAFKA_SEND_BUFFER)
    ids = ["a", "b"]
    if stalled_port is not None:
        address = SocketAddress("localhost", stalled_port, socket.AF_INET, ("127.0.0.1", stalled_port))
        selector.connect("stalled", address, send_buffer_bytes=KAFKA_SEND_BUFFER)
        while not selector.is_channel_ready("stalled"):
            selector.poll(1000)
        ids.append("stalled")
    for channel_id in ids:
        selector.send(NetworkSend(channel_id, [segment]))
    written, deadline = 0, time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        selector.poll(100)
        for send in selector.completed_sends:
            written += send.channel_id != "stalled"
            selector.send(NetworkSend(send.channel_id, [segment]))
    selector.close()
    return written


# --- the peer


@contextmanager
def run_discard_server(certificates: Path | None) -> Iterator[int]:
    """Run a process that reads and discards frames, and yield its port. It answers an empty frame with an empty one."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        process = multiprocessing.get_context("fork").Process(target=_accept, args=(listener, certificates))
        process.start()
        try:
            yield listener.getsockname()[1]
        finally:
            process.kill()
            process.join()


def _accept(listener: socket.socket, certificates: Path | None) -> None:
    context: ssl.SSLContext | None = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "node.pem")
    while True:
        accepted, _ = listener.accept()
        threading.Thread(target=_discard_frames, args=(accepted, context), daemon=True).start()


def _discard_frames(accepted: socket.socket, context: ssl.SSLContext | None) -> None:
    sock = context.wrap_socket(accepted, server_side=True) if context else accepted
    buffer = bytearray(MEGABYTE)
    with sock:
        while _receive_exactly(sock, memoryview(buffer)[:4]):
            size = int.from_bytes(buffer[:4], "big")
            if size == 0:
                sock.sendall(bytes(4))
            elif not _receive_exactly(sock, memoryview(buffer)[:size]):
                return


def _receive_exactly(sock: socket.socket, space: memoryview) -> bool:
    """Fill `space` from the socket. Return False if the connection ends first."""
    while space:
        try:
            received = sock.recv_into(space)
        except OSError:
            return False
        if not received:
            return False
        space = space[received:]
    return True


def _create_client_context(certificates: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates / "ca.pem")
    return context


def _build_tls_channel_builder(context: ssl.SSLContext) -> Callable[..., KafkaChannel]:
    def build(
        channel_id: str, sock: ByteSocket, address: SocketAddress, *, is_connecting: bool, max_frame_bytes: int
    ) -> KafkaChannel:
        transport = TlsTransport(sock, context, server_hostname=address.host)
        return KafkaChannel(
            channel_id,
            address,
            transport,
            NoAuthentication(),
            is_connecting=is_connecting,
            max_frame_bytes=max_frame_bytes,
        )

    return build


if __name__ == "__main__":
    main()
