"""bootstrap.servers: the addresses to begin with, as nodes whose ids are negative because the true ones are unknown.

Every name is looked up once at the start, so that a misspelt one is an error of the configuration and at once, not a
time-out later. If some can be resolved, the others are only warned about: a broker may be gone for good, and its name
with it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import ConfigurationError, NetworkError
from spark_kafka_sink.network.system import System

OPTION = "bootstrap.servers"
USE_ALL_DNS_IPS = "use_all_dns_ips"
RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"
PORT_MAX = 65535

# A scheme in front, such as PLAINTEXT://, is taken and ignored, as other clients do; IPv6 addresses stand in brackets.
_ADDRESS = re.compile(r"(?:[0-9a-zA-Z\-_.]+://)?(?:\[([0-9a-fA-F:.%\w]+)\]|([0-9a-zA-Z\-_.]+)):([0-9]{1,5})", re.ASCII)

_log = logging.getLogger(__name__)


def parse_bootstrap_servers(servers: Sequence[str]) -> list[tuple[str, int]]:
    """Host and port of each; ConfigurationError that names every one that is not HOST:PORT."""
    addresses: list[tuple[str, int]] = []
    faults: list[str] = []
    for server in servers:
        match = _ADDRESS.fullmatch(server.strip())
        if "@" in server:  # not shown: what stands before it is a password
            faults.append(f"{OPTION}: an address has an '@'; user and password go into sasl.jaas.config")
        elif match is None:
            faults.append(f"{OPTION}: {server.strip()!r} is not HOST:PORT")
        elif not 0 < int(match[3]) <= PORT_MAX:
            faults.append(f"{OPTION}: the port of {server.strip()!r} is not between 1 and {PORT_MAX}")
        else:
            addresses.append((match[1] or match[2], int(match[3])))
    if not servers:
        faults.append(f"{OPTION} names no address")
    if faults:
        raise ConfigurationError(faults)
    return list(dict.fromkeys(addresses))


def bootstrap_nodes(servers: Sequence[str], dns_lookup: str, system: System) -> tuple[Node, ...]:
    """Looks the names up. With RESOLVE_CANONICAL, each address of a name becomes a node of its own, by its own name."""
    places: list[tuple[str, int]] = []
    failures: list[str] = []
    for host, port in parse_bootstrap_servers(servers):
        try:
            addresses = system.resolve(host, port)
        except NetworkError as error:
            _log.warning("%s: %s", OPTION, error)
            failures.append(str(error))
            continue
        if dns_lookup == RESOLVE_CANONICAL:
            places.extend((system.canonical_name(address), port) for address in addresses)
        else:
            places.append((host, port))
    if not places:
        raise ConfigurationError(f"{OPTION}: none of its addresses can be resolved. {'; '.join(failures)}")
    return tuple(Node(-1 - index, host, port) for index, (host, port) in enumerate(dict.fromkeys(places)))
