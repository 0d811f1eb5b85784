"""Removes secrets from configurations and log messages."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fairlead.config import Settings
from fairlead.domain.access import SECRET_PATTERN
from fairlead.domain.redaction import HIDDEN


def without_keys(text: str) -> str:
    """Return the text with every key and ticket shortened to its id, which is not secret."""
    return SECRET_PATTERN.sub(rf"\g<1>{HIDDEN}", text) if "fl" in text else text


def without_secrets(url: str) -> str:
    """Return the URL without its password and without the values in its query string, which may be tokens."""
    if url.startswith("sqlite:"):
        # The URL of a file contains no password and no secrets in its query.
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    if "@" in parts.path and not parts.scheme.startswith("http"):
        # The password contains an unescaped /, so the path has the rest of the password.
        return HIDDEN
    user, _, host = parts.netloc.rpartition("@")
    if ":" in user:
        user = f"{user.partition(':')[0]}:{HIDDEN}"
    query = "&".join(f"{pair.partition('=')[0]}={HIDDEN}" for pair in parts.query.split("&") if pair)
    return urlunsplit((parts.scheme, f"{user}@{host}" if user else host, parts.path, query, ""))


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Return the effective settings as plain data without secrets."""
    config = settings.config.model_dump(mode="json", exclude_none=True)
    services = config["services"].values()
    for section in (*services, config["priority"]):
        for header, value in section["headers"].items():
            # `env:TOKEN` is the name of a variable, not a secret.
            section["headers"][header] = value if value.startswith("env:") else HIDDEN
    for target in (*services, *(region for service in services for region in service["regions"].values())):
        for key in target.keys() & {"url", "openai"}:
            target[key] = without_secrets(target[key])
    if "url" in config["priority"]:
        config["priority"]["url"] = without_secrets(config["priority"]["url"])
    for key in ("broker_url", "result_backend"):
        if key in config["celery"]:
            config["celery"][key] = without_secrets(config["celery"][key])
    for name, url in config["shards"].items():
        config["shards"][name] = url if url.startswith("env:") else without_secrets(url)
    return {
        "source": settings.source,
        "database_url": without_secrets(settings.database_url),
        "redis_url": without_secrets(settings.redis_url) if settings.redis_url else None,
        "admin_key": HIDDEN if settings.admin_key else None,
        **config,
    }
