"""`sasl.jaas.config` as users of the Java client write it:

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="it's";

One login module, a control flag, options as name=value with double or single quotes, a semicolon. The class is not
loaded: its name says which of our mechanisms is meant, whatever package it was moved to. Messages never quote the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_kafka_sink.errors import ConfigurationError

MECHANISMS = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
    "Krb5LoginModule": ("GSSAPI",),
}

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/            # skipped
    | (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<mark>[=;])
    | (?P<word>[^\s=;"']+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:(?P<octal>[0-3][0-7]{0,2}|[4-7][0-7]?)|(?P<other>.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
"""As in a Java source, where octal numbers are allowed too."""


@dataclass(frozen=True)
class LoginModule:
    name: str
    options: dict[str, str] = field(repr=False)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return MECHANISMS[self.name]


def parse_jaas(text: str) -> LoginModule:
    tokens = _tokens(text)
    words = iter(tokens)
    class_name, flag = next(words, ""), next(words, "")
    name = class_name.rpartition(".")[2]
    if name not in MECHANISMS:
        raise ConfigurationError(
            f"sasl.jaas.config must begin with a login module, one of {', '.join(MECHANISMS)} with its package."
        )
    if flag.lower() not in _FLAGS:
        raise ConfigurationError(f"sasl.jaas.config must have 'required' after {name}.")
    options: dict[str, str] = {}
    for option in words:
        if option == ";":
            break
        if next(words, "") != "=":
            raise ConfigurationError(f"sasl.jaas.config must have name=value pairs after {name} {flag}.")
        options[option] = _unquoted(next(words, ";"))
    else:
        raise ConfigurationError("sasl.jaas.config must end with a semicolon.")
    if next(words, None) is not None:
        raise ConfigurationError("sasl.jaas.config must have one login module only.")
    return LoginModule(name, options)


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ConfigurationError("sasl.jaas.config has a quote that is not closed.")
        if match.lastgroup is not None:
            tokens.append(match[0])
        position = match.end()
    return tokens


def _unquoted(token: str) -> str:
    if token in ("=", ";"):
        raise ConfigurationError("sasl.jaas.config has a name without a value.")
    if token[0] not in "\"'":
        return token
    return _ESCAPE.sub(_unescaped, token[1:-1])


def _unescaped(escape: re.Match[str]) -> str:
    return chr(int(escape["octal"], 8)) if escape["octal"] else _ESCAPES.get(escape["other"], escape["other"])
