"""The Selector for longer than a unit test may take: many connections, and a peer that stops reading."""

from __future__ import annotations

import os
import socket
import statistics
import threading

from integration.benchmarks.network import stalled_share
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import OperatingSystem

CONNECTIONS = 10_000
BATCH = 500


def test_ten_thousand_connections_leave_no_descriptor_and_no_thread() -> None:
    system = OperatingSystem()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(BATCH)
        address = system.resolve("127.0.0.1", listener.getsockname()[1])[0]
        before = len(os.listdir("/proc/self/fd")), threading.active_count()
        selector = Selector(system)
        for first in range(0, CONNECTIONS, BATCH):
            waiting = {str(number) for number in range(first, first + BATCH)}
            ids = sorted(waiting)
            for channel_id in ids:
                selector.connect(channel_id, address)
            while waiting:
                selector.poll(1000)
                assert not selector.disconnected
                waiting -= set(selector.connected)
            # One half is closed by us, the other by the other end.
            accepted = [listener.accept()[0] for _ in ids]
            for channel_id in ids[: BATCH // 2]:
                selector.close_channel(channel_id)
            for sock in accepted:
                sock.close()
            open_ones = set(ids[BATCH // 2 :])
            while open_ones:
                selector.poll(1000)
                open_ones -= set(selector.disconnected)
        selector.close()
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_a_stalled_peer_takes_less_than_a_tenth_from_the_others() -> None:
    shares = [stalled_share(0.5) for _ in range(7)]
    assert statistics.median(shares) > 0.9, f"shares of what the others get without it: {shares}"
