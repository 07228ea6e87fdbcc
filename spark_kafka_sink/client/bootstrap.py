"""Resolution of bootstrap.servers to nodes. Their ids are negative, because the real ones are not known yet.

Every host name is resolved at startup, so that a misspelt name raises ConfigurationError immediately instead of timing
out later. If at least one name can be resolved, failures to resolve other names are only logged as warnings, because a
decommissioned broker may have lost its DNS entry.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import NamedTuple

from spark_kafka_sink.client.cluster import Node
from spark_kafka_sink.errors import ConfigurationError, NetworkError, OptionProblem, OptionProblems
from spark_kafka_sink.network.system import System

BOOTSTRAP_SERVERS_OPTION = "bootstrap.servers"
MAX_PORT = 65535

# The values of client.dns.lookup.
USE_ALL_DNS_IPS = "use_all_dns_ips"
RESOLVE_CANONICAL = "resolve_canonical_bootstrap_servers_only"

# Like other clients, accept and ignore a scheme such as PLAINTEXT://. IPv6 addresses are enclosed in brackets.
_ADDRESS_PATTERN = re.compile(
    r"(?:[0-9a-zA-Z\-_.]+://)?(?:\[(?P<ipv6>[0-9a-fA-F:.%\w]+)\]|(?P<host>[0-9a-zA-Z\-_.]+)):(?P<port>[0-9]{1,5})",
    re.ASCII,
)

_log = logging.getLogger(__name__)


class ResolvedServers(NamedTuple):
    """The result of one attempt to resolve bootstrap.servers."""

    nodes: tuple[Node, ...]
    """A node for each host that was resolved; empty if none was."""
    failures: str
    """The names that could not be resolved, each with the reason; an empty string if all were resolved."""


def parse_bootstrap_servers(servers: Sequence[str]) -> list[tuple[str, int]]:
    """Return the distinct (host, port) pairs of the servers, in the given order.

    Raise a single ConfigurationError that lists every server that is not of the form HOST:PORT.
    """
    addresses: list[tuple[str, int]] = []
    problems = OptionProblems()  # replaces {name} in a message with the keyword argument or the option of that name
    for server in servers:
        address = server.strip()
        match = _ADDRESS_PATTERN.fullmatch(address)
        if "@" in address:  # Do not show the address: the part before the '@' may be a password.
            message_template = (
                "has an address that contains '@'. Put the user name and password into {sasl.jaas.config}."
            )
            problems.add(BOOTSTRAP_SERVERS_OPTION, message_template)
        elif match is None:
            problems.add(BOOTSTRAP_SERVERS_OPTION, "has {address!r}, which is not HOST:PORT.", address=address)
        elif not 0 < int(match["port"]) <= MAX_PORT:
            message_template = "has {address!r}, whose port is not between 1 and {max_port}."
            problems.add(BOOTSTRAP_SERVERS_OPTION, message_template, address=address, max_port=MAX_PORT)
        else:
            addresses.append((match["ipv6"] or match["host"], int(match["port"])))
    if not servers:
        problems.add(BOOTSTRAP_SERVERS_OPTION, "has no address.")
    if problems:
        raise ConfigurationError(problems)
    return list(dict.fromkeys(addresses))


def resolve_bootstrap_nodes(servers: Sequence[str], dns_lookup: str, system: System) -> tuple[Node, ...]:
    """Resolve the servers' host names. With RESOLVE_CANONICAL, return a node for each distinct canonical name.

    Raise ConfigurationError if no name can be resolved.
    """
    resolved_servers = resolve_servers(servers, dns_lookup, system, failure_level=logging.WARNING)
    if not resolved_servers.nodes:
        message_template = "has no address that can be resolved: {failures}"
        raise ConfigurationError(
            OptionProblem(BOOTSTRAP_SERVERS_OPTION, message_template, {"failures": resolved_servers.failures})
        )
    return resolved_servers.nodes


def resolve_servers(servers: Sequence[str], dns_lookup: str, system: System, failure_level: int) -> ResolvedServers:
    """Try once to resolve each server's host name.

    `dns_lookup`: the value of client.dns.lookup.
    `failure_level`: the level at which to log each failure.

    Raise ConfigurationError if an address is not HOST:PORT.
    """
    resolved_hosts: list[tuple[str, int]] = []
    failures: list[str] = []
    for host, port in parse_bootstrap_servers(servers):
        try:
            addresses = system.resolve(host, port)
        except NetworkError as error:
            _log.log(failure_level, "%s: %s", BOOTSTRAP_SERVERS_OPTION, error)
            failures.append(str(error))
            continue
        if dns_lookup == RESOLVE_CANONICAL:
            resolved_hosts.extend((system.find_canonical_name(address), port) for address in addresses)
        else:
            # The addresses are not kept, because each connection attempt resolves the name again.
            resolved_hosts.append((host, port))
    distinct_hosts = dict.fromkeys(resolved_hosts)
    # Negative ids cannot be confused with the brokers' real ids.
    nodes = tuple(Node(-1 - index, host, port) for index, (host, port) in enumerate(distinct_hosts))
    return ResolvedServers(nodes, "; ".join(failures))
