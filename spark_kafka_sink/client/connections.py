"""The connections to the brokers: made, introduced by ApiVersions, and ended with a reason that a person can use.

This is the part of the NetworkClient that knows nodes and addresses but no requests. What ends a connection is a Loss:
its words go into the error of every request that was lost with it, and of every caller who waits for metadata in vain.

In the log a WARNING is for what a person should look at: a broker that cannot be reached, or does not speak to us. It
is given once, not for each of the attempts that follow every second. The end of a connection that had served is logged
at INFO, as in the Java client: brokers close idle ones, and restart.
"""

from __future__ import annotations

import logging
from functools import partial
from random import Random

from spark_kafka_sink.client.cluster import ClusterSnapshot, Node
from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.client.connection_states import ConnectionStates
from spark_kafka_sink.client.request import Loss
from spark_kafka_sink.client.versions import (
    FinalizedFeatures,
    NodeVersions,
    newest_features,
    node_versions,
    older_api_versions_version,
)
from spark_kafka_sink.errors import AuthenticationError, DisconnectedError, NetworkError
from spark_kafka_sink.network.channel import ChannelState, ChannelStateKind
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import SocketAddress, System
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.error_codes import error_code
from spark_kafka_sink.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from spark_kafka_sink.words import cleaned, host_fault

ADDRESSES_WARNED_MAX = 1_000
REFUSALS_BELIEVED = 3
"""When this many brokers refuse our credentials, and none takes them, the others need not be tried."""

_log = logging.getLogger(__name__)


def resolve_advertised(system: System, host: str, port: int) -> list[SocketAddress]:
    """The addresses of a broker. What it advertises may be no name at all: no resolver and no TLS should see that."""
    fault = host_fault(host)
    if fault is not None:
        raise DisconnectedError(
            f"{cleaned(host)!r} is no name of a host: {fault}; a broker advertises it, correct its advertised.listeners"
        )
    return system.resolve(host, port)


class Connections:
    """Sender thread only; `features` is replaced as a whole and may be read by any thread."""

    def __init__(self, selector: Selector, config: ClientConfig, *, system: System, random: Random) -> None:
        self.states = ConnectionStates(
            reconnect_backoff_ms=config.reconnect_backoff_ms,
            reconnect_backoff_max_ms=config.reconnect_backoff_max_ms,
            setup_timeout_ms=config.socket_connection_setup_timeout_ms,
            setup_timeout_max_ms=config.socket_connection_setup_timeout_max_ms,
            resolve=partial(resolve_advertised, system),
            random=random,
        )
        self.versions: dict[int, NodeVersions] = {}
        self.features = FinalizedFeatures()
        self.losses: dict[int, Loss] = {}
        """Why the last connection to a node is gone, or did not come about; until one is ready."""
        self._selector = selector
        self._config = config
        self._to_introduce: dict[int, int] = {}  # node -> the version of ApiVersions to ask it in
        self._nodes: dict[int, Node] = {}
        self._addresses: dict[int, str] = {}
        self._warned: dict[str, str] = {}  # address -> what was last said about it; until it is ready again

    # --- making one

    def connect(self, node: Node, now: float) -> Loss | None:
        """Begin; a Loss if that failed on the spot."""
        self._nodes[node.id] = node
        self._addresses[node.id] = node.address
        try:
            address = self.states.connecting(node, now)
            self._addresses[node.id] = str(address)
            _log.debug("Connecting to %s at %s", node, address)
            self._selector.connect(
                str(node.id),
                address,
                send_buffer_bytes=self._config.send_buffer_bytes,
                receive_buffer_bytes=self._config.receive_buffer_bytes,
            )
        except NetworkError as error:
            return Loss(str(error))
        return None

    def accept_connected(self) -> None:
        """Note the connections that the poll has made. Their channels may not be ready yet: TLS and SASL come first."""
        for channel_id in self._selector.connected:
            self._to_introduce[int(channel_id)] = ApiVersionsRequest.VERSIONS.max

    def next_introductions(self) -> dict[int, int]:
        """Nodes that are to be asked for their API versions now, and in which version; each is returned once."""
        if not self._to_introduce:
            return {}
        due = {
            node_id: version
            for node_id, version in self._to_introduce.items()
            if self._selector.is_channel_ready(str(node_id))
        }
        for node_id in due:
            del self._to_introduce[node_id]
            # Not before: until the channel is ready, the time limit of a connection that is being set up holds.
            self.states.checking_api_versions(node_id)
        return due

    def introduced(self, node_id: int, answer: ApiVersionsResponse, version: int, now: float) -> Loss | None:
        """Take the answer to ApiVersions, which was asked in `version`. A Loss if the node is of no use."""
        if answer.error_code == error_codes.NONE:
            self.versions[node_id] = node_versions(self.describe(node_id), answer)
            self.features = newest_features(self.versions.values(), self.features)
            self.states.ready(node_id, now)
            self.losses.pop(node_id, None)
            if self._warned.pop(self.address(node_id), None) is not None:
                _log.info("Connected: %s", self.address(node_id))
            return None
        if answer.error_code == error_codes.UNSUPPORTED_VERSION and version > 0:
            self._to_introduce[node_id] = older_api_versions_version(answer, version)
            return None
        error = error_code(answer.error_code)
        return Loss(f"{self.describe(node_id)} refused to send its API versions: {error.name}. {error.advice}")

    # --- being one

    def is_ready(self, node_id: int, now: float) -> bool:
        return self.states.is_ready(node_id, now) and self._selector.is_channel_ready(str(node_id))

    def is_alive(self, node_id: int) -> bool:
        """There is a connection, or one is being made."""
        return self.states.is_preparing(node_id) or self.states.is_connected(node_id)

    def describe(self, node_id: int) -> str:
        return str(self._nodes.get(node_id, f"node {node_id}"))

    def address(self, node_id: int) -> str:
        """Where the node was last looked for, with the IP."""
        return self._addresses.get(node_id, self.describe(node_id))

    # --- ending one

    def loss(self, node_id: int, ended: ChannelState) -> Loss:
        """The reason that the selector has for the end of a channel, as a Loss."""
        error = ended.error
        detail = str(error) if error is not None else f"{self.address(node_id)}: disconnected"
        if isinstance(error, AuthenticationError) and ended.authentication_failed:
            return Loss(detail, authentication_error=error)
        if ended.kind is ChannelStateKind.EXPIRED:
            return Loss(detail, expected=True)
        if ended.kind is ChannelStateKind.AUTHENTICATE:
            detail += " (during the TLS or SASL handshake: a wrong security.protocol?)"
        elif node_id not in self.versions and ended.kind is ChannelStateKind.READY:
            why = "the listener may expect SASL or TLS, see security.protocol"
            detail += f" (before any answer: {why})"
        return Loss(detail, served=node_id in self.versions)

    def lost(self, node_id: int, loss: Loss, now: float) -> None:
        self.versions.pop(node_id, None)
        self._to_introduce.pop(node_id, None)
        self.losses[node_id] = loss
        if loss.authentication_error is not None:
            level = logging.ERROR if self._is_news(node_id, loss) else logging.DEBUG
            _log.log(level, "%s: authentication failed: %s", self.describe(node_id), loss.reason)
            self.states.authentication_failed(node_id, now, loss.authentication_error)
        else:
            had_one = loss.expected or loss.served or loss.timed_out
            kind = "Disconnected" if had_one else "No connection"
            _log.log(self._level(node_id, loss), "%s: %s", kind, loss.reason)
            self.states.disconnected(node_id, now)

    def _level(self, node_id: int, loss: Loss) -> int:
        if loss.expected:
            return logging.DEBUG
        if loss.served:
            return logging.INFO
        return logging.WARNING if self._is_news(node_id, loss) else logging.DEBUG

    def _is_news(self, node_id: int, loss: Loss) -> bool:
        address = self.address(node_id)
        is_news = self._warned.get(address) != loss.reason
        if len(self._warned) >= ADDRESSES_WARNED_MAX:
            self._warned.clear()
        self._warned[address] = loss.reason
        return is_news

    def refused_everywhere(self, known: ClusterSnapshot) -> AuthenticationError | None:
        """Why no broker takes our credentials, if that is so.

        A broker may refuse for a while, when it has been restarted and has not heard of the user yet. So what one says
        is not final while there are others to try. Before anything is known of the cluster, a broker that cannot be
        reached is not waited for.
        """
        if any(self.is_alive(node_id) for node_id in known.nodes):
            return None
        refusing = [node_id for node_id in known.nodes if self.states.refuses(node_id)]
        others = [node_id for node_id in known.nodes if node_id not in refusing]
        hopeless = known.is_bootstrap and all(self.states.is_unreachable(node_id) for node_id in others)
        if not refusing or (others and not hopeless and len(refusing) < REFUSALS_BELIEVED):
            return None
        latest = max(refusing, key=self.states.last_attempt_ms)
        return self.states.authentication_error(latest)

    def close(self, node_id: int) -> None:
        """Close the channel, if there is one; `lost` must follow."""
        self._selector.close_channel(str(node_id))
