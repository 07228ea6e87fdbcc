"""Option names of librdkafka (confluent-kafka) and of kafka-python, and what they are called here.

A guess by the letters of a name is often wrong between clients: of all names of the Java producer `ssl.protocol` is the
nearest to librdkafka's `ssl.ca.location`. So names that other clients have are looked up, in two steps: a name with
underscores may simply be one with dots, else it is in the table. Names of options stand in braces, as in the text of an
OptionFault.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

from spark_kafka_sink.errors import OptionFault

_PEM_TRUST = "{ssl.truststore.location}, with {ssl.truststore.type} PEM"
_PEM_KEY = "{ssl.keystore.location}, with {ssl.keystore.type} PEM: one file with the key and the certificates"
_LOGIN = (
    "{sasl.jaas.config}, for PLAIN: org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="<user>" password="<password>"; and for SCRAM: '
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="<user>" password="<password>";'
)
_KERBEROS = "a ticket in the cache of the process (kinit), with {sasl.kerberos.service.name}"
_LOGGING = "Python's logging, logger spark_kafka_sink"

LIBRDKAFKA = {
    "metadata.broker.list": "{bootstrap.servers}",
    "request.required.acks": "{acks}",
    "queue.buffering.max.ms": "{linger.ms}",
    "queue.buffering.max.kbytes": "{buffer.memory}, in bytes",
    "queue.buffering.max.messages": "{buffer.memory}, in bytes",
    "batch.num.messages": "{batch.size}, in bytes",
    "message.max.bytes": "{max.request.size}",
    "message.send.max.retries": "{retries}",
    "message.timeout.ms": "{delivery.timeout.ms}",
    "max.in.flight": "{max.in.flight.requests.per.connection}",
    "compression.codec": "{compression.type}",
    "compression.level": "{compression.gzip.level}, {compression.lz4.level} or {compression.zstd.level}",
    "partitioner": "{partitioner.class}; murmur2_random is what is done without it",
    "socket.timeout.ms": "{request.timeout.ms}",
    "socket.send.buffer.bytes": "{send.buffer.bytes}",
    "socket.receive.buffer.bytes": "{receive.buffer.bytes}",
    "topic.metadata.refresh.interval.ms": "{metadata.max.age.ms}",
    "enable.ssl.certificate.verification": "nothing: certificates are always verified",
    "ssl.ca.location": _PEM_TRUST,
    "ssl.ca.pem": "{ssl.truststore.certificates}",
    "ssl.certificate.location": _PEM_KEY,
    "ssl.certificate.pem": "{ssl.keystore.certificate.chain}",
    "ssl.key.location": _PEM_KEY,
    "ssl.key.pem": "{ssl.keystore.key}",
    "sasl.mechanisms": "{sasl.mechanism}",
    "sasl.username": _LOGIN,
    "sasl.password": _LOGIN,
    "sasl.kerberos.keytab": _KERBEROS,
    "sasl.kerberos.principal": _KERBEROS,
    "sasl.oauthbearer.client.id": "{sasl.oauthbearer.client.credentials.client.id}",
    "sasl.oauthbearer.client.secret": "{sasl.oauthbearer.client.credentials.client.secret}",
    "sasl.oauthbearer.assertion.jwt.template.file": "{sasl.oauthbearer.assertion.template.file}",
    "sasl.oauthbearer.assertion.private.key.pem": "{sasl.oauthbearer.assertion.private.key.file}",
    "sasl.oauthbearer.grant.type": "{sasl.oauthbearer.jwt.retriever.class}, for the grant jwt-bearer "
    "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever",
    "sasl.oauthbearer.method": "nothing: {sasl.oauthbearer.token.endpoint.url} says it",
    "debug": _LOGGING,
    "log_level": _LOGGING,
    "statistics.interval.ms": "nothing: read KafkaProducer.metrics()",
}

KAFKA_PYTHON = {
    "ssl_cafile": _PEM_TRUST,
    "ssl_certfile": _PEM_KEY,
    "ssl_keyfile": _PEM_KEY,
    "ssl_password": "{ssl.key.password}",
    "ssl_check_hostname": "{ssl.endpoint.identification.algorithm}",
    "sasl_plain_username": _LOGIN,
    "sasl_plain_password": _LOGIN,
    "sasl_oauth_token_provider": "{sasl.oauthbearer.token.callback}",
    "api_version": "nothing: the brokers are asked",
}


def unknown_option(name: str, known: Collection[str], reader: str) -> OptionFault:
    """The fault of a name that is none of `known`. `reader` is who reads the options."""
    return OptionFault(name, f"is not an option of the Kafka {reader}. {suggest_option_name(name, known)}".rstrip())


def suggest_option_name(name: str, known: Collection[str]) -> str:
    """Suggest an option for an unknown name. Return the text of an OptionFault, empty if there is no suggestion."""
    words = _other_clients(name, known)
    if words is None:
        near = difflib.get_close_matches(name, known, n=1)
        words = f"Did you mean {{{near[0]}}}?" if near else ""
    return words


def _other_clients(name: str, known: Collection[str]) -> str | None:
    dotted = name.replace("_", ".")
    if dotted != name and dotted in known:
        return f"Names have dots here: {{{dotted}}}."
    for client, names in (("librdkafka", LIBRDKAFKA), ("kafka-python", KAFKA_PYTHON)):
        if name in names:
            return f"That is {client}'s name; here it is {names[name]}" + ("" if names[name].endswith(";") else ".")
    return None
