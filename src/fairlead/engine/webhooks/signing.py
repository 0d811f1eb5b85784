"""The headers of a webhook: the signatures of Standard Webhooks, and those of fal."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fairlead.domain.webhooks import Delivery
from fairlead.errors import ConfigError
from fairlead.version import __version__

NEEDS_CRYPTOGRAPHY = "webhooks signed as fal signs them need a library: pip install 'fairlead[fal]'"


def headers_of(delivery: Delivery, body: str, secrets: Sequence[str], now: float) -> dict[str, str]:
    """The headers of one attempt. The id is the same in all attempts; the time is that of this one. Each secret makes a
    signature, so that receivers can change theirs while both are valid."""
    from standardwebhooks import Webhook

    moment = datetime.fromtimestamp(int(now), UTC)
    signatures = [Webhook(secret).sign(delivery.id, moment, body) for secret in secrets]
    return {
        "Content-Type": "application/json",
        "User-Agent": f"fairlead/{__version__}",
        "webhook-id": delivery.id,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": " ".join(signatures),
    }


def fal_headers(request_id: str, user_id: str, body: str, private_key: str, now: float) -> dict[str, str]:
    """The headers with which fal signs a body, by Ed25519. `private_key` is the base64 of 32 bytes."""
    timestamp = str(int(now))
    message = "\n".join((request_id, user_id, timestamp, hashlib.sha256(body.encode()).hexdigest()))
    signature = _ed25519(private_key).sign(message.encode())
    return {
        "X-Fal-Webhook-Request-Id": request_id,
        "X-Fal-Webhook-User-Id": user_id,
        "X-Fal-Webhook-Timestamp": timestamp,
        "X-Fal-Webhook-Signature": signature.hex(),
    }


def fal_jwks(private_keys: Sequence[str]) -> Mapping[str, Any]:
    """The public keys by which receivers verify fal's signatures (RFC 8037)."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    raw = [_ed25519(key).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw) for key in private_keys]
    return {
        "keys": [{"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "x": _base64url(key)} for key in raw]
    }


def _ed25519(private_key: str) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise ConfigError([NEEDS_CRYPTOGRAPHY]) from None
    return Ed25519PrivateKey.from_private_bytes(base64.b64decode(private_key))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
