"""Parser of `sasl.jaas.config`, which has the same syntax as in the Java client.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="it's";

The value is a login module class, a control flag and any number of name=value options, terminated by a semicolon.
Each of these words may be in double or single quotes. The simple name of the login module's class determines the SASL
mechanism; the package is ignored. Error messages never quote the value, because it may contain a password.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_kafka_sink.errors import ConfigurationError, OptionProblem

MECHANISMS_BY_LOGIN_MODULE = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
    "Krb5LoginModule": ("GSSAPI",),
}
"""The SASL mechanisms for the credentials of a login module, by the module's simple class name."""

_CONTROL_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN_PATTERN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/            # skipped
    | (?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<punctuation>[=;])
    | (?P<word>[^\s=;"']+)""",
    re.VERBOSE | re.DOTALL,
)
_QUOTES_REMEDY = "Put values that contain other characters than letters and digits into double quotes."
"""The remedy for values with characters such as `=`, `;` or a quote, which have a meaning outside of quotes."""
_ESCAPE_PATTERN = re.compile(r"\\(?:(?P<octal>[0-3][0-7]{0,2}|[4-7][0-7]?)|(?P<other>.))", re.DOTALL)
_ESCAPED_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}
"""Java's escape sequences by the character after the backslash. Octal escapes are handled in `_unescape`."""


@dataclass(frozen=True)
class LoginModule:
    """A parsed login module: the simple name of its class and its options."""

    name: str
    options: dict[str, str] = field(repr=False)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return MECHANISMS_BY_LOGIN_MODULE[self.name]


def parse_jaas_config(text: str) -> LoginModule:
    """Parse the value of sasl.jaas.config. Raise ConfigurationError if the value is invalid."""
    tokens = iter(_tokenize(text))
    class_name = _unquote(next(tokens, ""))
    control_flag = _unquote(next(tokens, ""))
    module_name = class_name.rpartition(".")[2]
    if module_name not in MECHANISMS_BY_LOGIN_MODULE:
        raise _build_invalid_error(
            "must begin with a login module and its package. "
            f"The login modules are {', '.join(MECHANISMS_BY_LOGIN_MODULE)}."
        )
    # All of Java's control flags are accepted. They have no effect, because there is only one login module.
    if control_flag.lower() not in _CONTROL_FLAGS:
        raise _build_invalid_error(f"must have 'required' after {module_name}.")
    options: dict[str, str] = {}
    for token in tokens:
        if token == ";":
            break
        if next(tokens, "") != "=":
            raise _build_invalid_error(
                f"must have name=value pairs after {module_name} {control_flag}. {_QUOTES_REMEDY}"
            )
        value = next(tokens, "")
        if value in ("", "=", ";"):
            raise _build_invalid_error(f"has a name without a value. {_QUOTES_REMEDY}")
        options[_unquote(token)] = _unquote(value)
    else:
        raise _build_invalid_error("must end with a semicolon.")
    if next(tokens, None) is not None:
        raise _build_invalid_error(f"must have one login module only. {_QUOTES_REMEDY}")
    return LoginModule(module_name, options)


def _tokenize(text: str) -> list[str]:
    """Split the text into words, quoted strings, `=` and `;`. Skip whitespace and comments."""
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN_PATTERN.match(text, position)
        if match is None:
            raise _build_invalid_error(f"has a quote that is not closed. {_QUOTES_REMEDY}")
        if match.lastgroup is not None:
            tokens.append(match[0])
        position = match.end()
    return tokens


def _unquote(token: str) -> str:
    """Return a word as it is, or a quoted string without its quotes and escapes."""
    if not token.startswith(('"', "'")):
        return token
    return _ESCAPE_PATTERN.sub(_unescape, token[1:-1])


def _unescape(escape: re.Match[str]) -> str:
    return (
        chr(int(escape["octal"], 8)) if escape["octal"] else _ESCAPED_CHARACTERS.get(escape["other"], escape["other"])
    )


def _build_invalid_error(problem: str) -> ConfigurationError:
    return ConfigurationError(OptionProblem("sasl.jaas.config", problem))
