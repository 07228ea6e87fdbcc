"""Assertions (RFC 7523): what a client shows to an identity provider in place of a secret; it signs them itself.

    header  {"alg": "RS256", "typ": "JWT", ...}        payload  {"iss", "sub", "aud", "iat", "nbf", "exp", "jti", ...}

An assertion is made for each request, with the key as the file has it then, so that a key may be replaced while a job
runs; or it lies in a file, where another program puts the next one, and is read for each request.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from spark_kafka_sink.diagnostics.text import sanitize
from spark_kafka_sink.errors import AuthenticationError
from spark_kafka_sink.network.security_options import default_of
from spark_kafka_sink.options.files import read_regular_file
from spark_kafka_sink.sasl.oauthbearer import decode_token_part, parse_token_expiry_s

ALGORITHMS = ("RS256", "ES256")
NEEDS = "needs the package cryptography to sign: install spark-kafka-sink[oauth], on Spark's workers, too"
_PREFIX = "sasl.oauthbearer.assertion"
_TOKEN_BYTES_MAX = 64 * 1024
_ES256_BYTES = 32
_CLAIM_SOURCES = f"{_PREFIX}.template.file and {_PREFIX}.claim.iss, .sub and .aud"
_MIN_RSA_BITS = 2048
"""The smallest RSA key that RFC 7518 (3.3) allows for RS256."""


@dataclass(frozen=True)
class AssertionConfig:
    """`file` has an assertion that others have signed; without it, one is signed with the key of `key_file`."""

    file: str | None = None
    key_file: str | None = None
    passphrase: str | None = field(default=None, repr=False)
    algorithm: str = default_of(f"{_PREFIX}.algorithm")
    template_file: str | None = None
    issuer: str | None = None
    subject: str | None = None
    audience: str | None = None
    exp_seconds: int = int(default_of(f"{_PREFIX}.claim.exp.seconds"))
    nbf_seconds: int = int(default_of(f"{_PREFIX}.claim.nbf.seconds"))
    jti_include: bool = False


def can_sign() -> bool:
    return find_spec("cryptography") is not None


def token_of_file(path: str, option: str, now_s: float) -> str:
    """The token that a file has now. AuthenticationError, without the content, if there is none, or it has ended."""
    try:
        text = read_regular_file(path, _TOKEN_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        raise AuthenticationError(
            f"OAUTHBEARER: {option}: {sanitize(path)} cannot be read here: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError:
        text = ""
    if text.count(".") != 2:
        raise AuthenticationError(f"OAUTHBEARER: {option}: {sanitize(path)} has no JSON Web Token in it")
    expires_s = parse_token_expiry_s(decode_token_part(text, 1))
    if expires_s is not None and expires_s <= now_s:
        raise AuthenticationError(
            f"OAUTHBEARER: {option}: the token of {sanitize(path)} ended {now_s - expires_s:.0f} s ago by the clock of "
            "this machine. Look whether what renews the file still runs, and whether the clock is right."
        )
    return text


def assertion_of(config: AssertionConfig, now_s: float) -> str:
    """For one request; with a `jti` of its own, if the provider takes each only once."""
    if config.file is not None:
        return token_of_file(config.file, f"{_PREFIX}.file", now_s)
    template = _template(config)
    header = {**template.get("header", {}), "alg": config.algorithm, "typ": "JWT"}
    named = {"iss": config.issuer, "sub": config.subject, "aud": config.audience}
    payload = {**{name: value for name, value in named.items() if value}, **template.get("payload", {})}
    payload |= {"iat": int(now_s), "nbf": int(now_s) - config.nbf_seconds, "exp": int(now_s) + config.exp_seconds}
    if config.jti_include:
        payload["jti"] = str(uuid.uuid4())
    try:
        signed = f"{_encoded(header)}.{_encoded(payload)}"
    except ValueError:  # NaN, Infinity or a lone surrogate: JSON has no form for it; the values may be secret
        raise AuthenticationError(
            "OAUTHBEARER: the claims of the assertion cannot be written as JSON. "
            f"Remove NaN, Infinity and unpaired surrogates from {_CLAIM_SOURCES}."
        ) from None
    return f"{signed}.{_base64(_signature(config, signed.encode()))}"


def shown(config: AssertionConfig) -> str:
    """Where the assertion came from, for the words of a refusal."""
    if config.file is not None:
        return f"the assertion of {sanitize(config.file)}"
    named = (("iss", config.issuer), ("sub", config.subject), ("aud", config.audience))
    claims = ", ".join(f"{name} {sanitize(value)!r}" for name, value in named if value)
    more = f" and the claims of {sanitize(config.template_file)}" if config.template_file else ""
    return f"the assertion with {claims or 'no iss, sub and aud'}{more}, signed by {config.algorithm}"


def _template(config: AssertionConfig) -> dict[str, dict[str, Any]]:
    if config.template_file is None:
        return {}
    words = f"OAUTHBEARER: {_PREFIX}.template.file: {sanitize(config.template_file)}"
    try:
        template = json.loads(read_regular_file(config.template_file))
    except OSError as error:
        raise AuthenticationError(f"{words} cannot be read here: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        template = None
    if not isinstance(template, dict) or not all(isinstance(part, dict) for part in template.values()):
        raise AuthenticationError(f'{words} must be JSON: {{"header": {{...}}, "payload": {{...}}}}')
    return template


def _signature(config: AssertionConfig, data: bytes) -> bytes:
    assert config.key_file is not None
    words = f"OAUTHBEARER: {_PREFIX}.private.key.file: {sanitize(config.key_file)}"
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise AuthenticationError(f"OAUTHBEARER: {_PREFIX}.private.key.file {NEEDS}") from None
    try:
        passphrase = None if config.passphrase is None else config.passphrase.encode()
        key = load_pem_private_key(read_regular_file(config.key_file), passphrase)
    except OSError as error:
        raise AuthenticationError(f"{words} cannot be read here: {error.strerror or error}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The reason of the library may repeat a part of the file.
        raise AuthenticationError(
            f"{words} is no private key in PEM, or {_PREFIX}.private.key.passphrase is not the one that it has"
        ) from None
    if config.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        if key.key_size < _MIN_RSA_BITS:
            raise AuthenticationError(
                f"{words} has an RSA key of {key.key_size} bits. RS256 needs at least {_MIN_RSA_BITS}."
            )
        return key.sign(data, padding.PKCS1v15(), SHA256())
    if config.algorithm == "ES256" and isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        numbers = utils.decode_dss_signature(key.sign(data, ec.ECDSA(SHA256())))
        return b"".join(number.to_bytes(_ES256_BYTES, "big") for number in numbers)
    wanted = "an RSA key" if config.algorithm == "RS256" else "a key of the curve P-256"
    raise AuthenticationError(f"{words} is not {wanted}, which {_PREFIX}.algorithm {config.algorithm} needs")


def _encoded(content: Mapping[str, Any]) -> str:
    return _base64(json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
