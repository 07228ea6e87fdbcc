"""JWT assertions (RFC 7523), which a client sends to an identity provider instead of a secret.

    header  {"alg": "RS256", "typ": "JWT", ...}        payload  {"iss", "sub", "aud", "iat", "nbf", "exp", "jti", ...}

For each token request, the client signs a new assertion with the key that the key file contains at that time, so a key
can be replaced while a job runs. Alternatively, the client reads an assertion from a file that another program renews.
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
from spark_kafka_sink.network.security_options import get_default
from spark_kafka_sink.options.files import build_unreadable_file_problem, read_bounded_file
from spark_kafka_sink.sasl.oauthbearer import decode_token_claims, parse_token_expiry_s

ALGORITHMS = ("RS256", "ES256")
MISSING_CRYPTOGRAPHY_MESSAGE = (
    'requires the cryptography package, also on Spark\'s workers: pip install "spark-kafka-sink[oauth]"'
)
_OPTION_PREFIX = "sasl.oauthbearer.assertion"
_MAX_TOKEN_BYTES = 64 * 1024
_ES256_INTEGER_BYTES = 32
"""The size of each of the two numbers in an ES256 signature (RFC 7518, 3.4)."""
_CLAIM_SOURCES_TEXT = f"{_OPTION_PREFIX}.template.file and {_OPTION_PREFIX}.claim.iss, .sub and .aud"
_MIN_RSA_BITS = 2048
"""The smallest RSA key that RFC 7518 (3.3) allows for RS256."""


@dataclass(frozen=True)
class AssertionConfig:
    """The source of assertions: a file with a signed assertion, or a key and the claims to sign with it.

    The repr omits the paths of the files, because they may be keys or assertions that were set by mistake.
    """

    file: str | None = field(default=None, repr=False)
    """A file with an assertion that another program signs. If it is None, assertions are signed with `key_file`."""
    key_file: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)
    algorithm: str = get_default(f"{_OPTION_PREFIX}.algorithm")
    template_file: str | None = field(default=None, repr=False)
    issuer: str | None = None
    subject: str | None = None
    audience: str | None = None
    exp_seconds: int = int(get_default(f"{_OPTION_PREFIX}.claim.exp.seconds"))
    """The time for which an assertion is valid after it was signed."""
    nbf_seconds: int = int(get_default(f"{_OPTION_PREFIX}.claim.nbf.seconds"))
    """The validity of an assertion starts this many seconds before it is signed."""
    includes_jti: bool = False


def can_sign() -> bool:
    """Return whether the optional `cryptography` package is installed."""
    return find_spec("cryptography") is not None


def read_token_file(path: str, option_name: str, now_s: float) -> str:
    """Read a JSON Web Token from a file.

    `option_name`: the option that contains the path, for error messages.
    `now_s`: the current Unix time.

    Raise AuthenticationError if the file cannot be read, contains no token or contains an expired one. The error never
    contains the token.
    """
    try:
        text = read_bounded_file(path, _MAX_TOKEN_BYTES).decode("ascii").strip()
    except OSError as error:
        raise _build_read_error(option_name, path, error) from None
    except UnicodeDecodeError:
        text = ""
    if text.count(".") != 2:  # the dots separate the header, the payload and the signature
        raise AuthenticationError(f"OAUTHBEARER: {option_name}: {sanitize(path)} contains no JSON Web Token")
    expires_at_s = parse_token_expiry_s(decode_token_claims(text))
    if expires_at_s is not None and expires_at_s <= now_s:
        raise AuthenticationError(
            f"OAUTHBEARER: {option_name}: the token in {sanitize(path)} expired {now_s - expires_at_s:.0f} s ago by "
            "the clock of this machine. Check that the program that renews the file is running, and that the clock is "
            "correct."
        )
    return text


def create_assertion(config: AssertionConfig, now_s: float) -> str:
    """Create the assertion for one token request: read it from a file, or sign a new one.

    `now_s`: the current Unix time.

    Raise AuthenticationError if the file or the key cannot be used.
    """
    if config.file is not None:
        return read_token_file(config.file, f"{_OPTION_PREFIX}.file", now_s)
    template = _read_template(config)
    issued_at_s = int(now_s)
    header = {**template.get("header", {}), "alg": config.algorithm, "typ": "JWT"}
    # Later claims replace earlier ones: the template's replace the configured claims, and the times replace both.
    payload: dict[str, Any] = _build_configured_claims(config)
    payload |= template.get("payload", {})
    payload |= {"iat": issued_at_s, "nbf": issued_at_s - config.nbf_seconds, "exp": issued_at_s + config.exp_seconds}
    if config.includes_jti:
        payload["jti"] = str(uuid.uuid4())
    try:
        signing_input = f"{_encode_json(header)}.{_encode_json(payload)}"
    except ValueError:  # NaN, Infinity or a lone surrogate, which JSON cannot represent; the values may be secret
        raise AuthenticationError(
            "OAUTHBEARER: the assertion's claims cannot be written as JSON. "
            f"Remove NaN, Infinity and unpaired surrogates from {_CLAIM_SOURCES_TEXT}."
        ) from None
    return f"{signing_input}.{_encode_base64url(_sign(config, signing_input.encode()))}"


def describe_assertion(config: AssertionConfig) -> str:
    """Describe the file or the claims of an assertion, for an error about its rejection."""
    if config.file is not None:
        return f"the assertion in {sanitize(config.file)}"
    claims = ", ".join(f"{name} {sanitize(value)!r}" for name, value in _build_configured_claims(config).items())
    template = f" and the claims in {sanitize(config.template_file)}" if config.template_file else ""
    return f"the assertion with {claims or 'no iss, sub and aud'}{template}, signed with {config.algorithm}"


def _build_configured_claims(config: AssertionConfig) -> dict[str, str]:
    """Return the claims whose options are set."""
    claims = {"iss": config.issuer, "sub": config.subject, "aud": config.audience}
    return {name: value for name, value in claims.items() if value}


def _read_template(config: AssertionConfig) -> dict[str, dict[str, Any]]:
    """Return the JSON object in the template file, or an empty dict if no file is set.

    The object may have the members `header` and `payload`. Raise AuthenticationError if the file cannot be used.
    """
    if config.template_file is None:
        return {}
    option_name = f"{_OPTION_PREFIX}.template.file"
    try:
        template = json.loads(read_bounded_file(config.template_file))
    except OSError as error:
        raise _build_read_error(option_name, config.template_file, error) from None
    except (ValueError, RecursionError):
        template = None
    if not isinstance(template, dict) or not all(isinstance(part, dict) for part in template.values()):
        raise AuthenticationError(
            f"OAUTHBEARER: {option_name}: {sanitize(config.template_file)} must be JSON: "
            '{"header": {...}, "payload": {...}}'
        )
    return template


def _sign(config: AssertionConfig, data: bytes) -> bytes:
    """Sign the data with the key that the key file currently contains.

    Raise AuthenticationError if the key cannot be read or is not suitable for the algorithm.
    """
    key = _load_private_key(config)
    # Import the package only after _load_private_key, which raises an error with a remedy if the package is missing.
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    prefix = _describe_key_file(config)
    if config.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        if key.key_size < _MIN_RSA_BITS:
            raise AuthenticationError(
                f"{prefix} has an RSA key of {key.key_size} bits. RS256 requires at least {_MIN_RSA_BITS}."
            )
        return key.sign(data, padding.PKCS1v15(), SHA256())
    if config.algorithm == "ES256" and isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        # JWTs contain the numbers r and s themselves (RFC 7518, 3.4). The library returns them in DER.
        r_and_s = utils.decode_dss_signature(key.sign(data, ec.ECDSA(SHA256())))
        return b"".join(number.to_bytes(_ES256_INTEGER_BYTES, "big") for number in r_and_s)
    required_key = "an RSA key" if config.algorithm == "RS256" else "a P-256 key"
    raise AuthenticationError(
        f"{prefix} is not {required_key}, which {_OPTION_PREFIX}.algorithm {config.algorithm} requires"
    )


def _load_private_key(config: AssertionConfig) -> Any:
    """Load the key that the key file currently contains. Raise AuthenticationError if that fails."""
    assert config.key_file is not None
    prefix = _describe_key_file(config)
    try:  # the package is optional, and the driver may have it while this machine does not
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise AuthenticationError(
            f"OAUTHBEARER: {_OPTION_PREFIX}.private.key.file {MISSING_CRYPTOGRAPHY_MESSAGE}"
        ) from None
    try:
        passphrase = None if config.passphrase is None else config.passphrase.encode()
        return load_pem_private_key(read_bounded_file(config.key_file), passphrase)
    except OSError as error:
        raise _build_read_error(f"{_OPTION_PREFIX}.private.key.file", config.key_file, error) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's message may contain a part of the file, so it is not shown.
        raise AuthenticationError(
            f"{prefix} is not a private key in PEM, or {_OPTION_PREFIX}.private.key.passphrase is wrong or missing"
        ) from None


def _describe_key_file(config: AssertionConfig) -> str:
    """Return the beginning of error messages about the key file."""
    return f"OAUTHBEARER: {_OPTION_PREFIX}.private.key.file: {sanitize(config.key_file or '')}"


def _build_read_error(option_name: str, path: str, error: OSError) -> AuthenticationError:
    return AuthenticationError(
        f"OAUTHBEARER: {build_unreadable_file_problem(option_name, path, error, 'this machine').render()}"
    )


def _encode_json(content: Mapping[str, Any]) -> str:
    return _encode_base64url(json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode())


def _encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
