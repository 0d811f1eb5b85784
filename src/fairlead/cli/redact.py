"""What may be shown of a configuration or written to a log: where things are, never what opens them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fairlead.config import Settings
from fairlead.domain import keytext

HIDDEN = "***"


def without_keys(text: str) -> str:
    """The text with every key and ticket in it cut down to what names it."""
    return keytext.SECRET.sub(rf"\g<1>{HIDDEN}", text) if "fl" in text else text


def without_secrets(url: str) -> str:
    """The URL without its password and without the values of its query, where tokens travel."""
    if url.startswith("sqlite:"):
        # A file: no password, and the query says how durable its commits are.
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    if "@" in parts.path and not parts.scheme.startswith("http"):
        # A / in a password that is not written %2F: what follows is not a path.
        return HIDDEN
    user, _, host = parts.netloc.rpartition("@")
    if ":" in user:
        user = f"{user.partition(':')[0]}:{HIDDEN}"
    query = "&".join(f"{pair.partition('=')[0]}={HIDDEN}" for pair in parts.query.split("&") if pair)
    return urlunsplit((parts.scheme, f"{user}@{host}" if user else host, parts.path, query, ""))


def shown_settings(settings: Settings) -> dict[str, Any]:
    """The effective settings as plain data, fit for a screen or a bug report."""
    config = settings.config.model_dump(mode="json", exclude_none=True)
    services = config["services"].values()
    for called in (*services, config["priority"]):
        for header, value in called["headers"].items():
            # `env:TOKEN` names a secret and is none.
            called["headers"][header] = value if value.startswith("env:") else HIDDEN
    for place in (*services, *(region for service in services for region in service["regions"].values())):
        if "url" in place:
            place["url"] = without_secrets(place["url"])
    if "url" in config["priority"]:
        config["priority"]["url"] = without_secrets(config["priority"]["url"])
    for key in ("broker_url", "result_backend"):
        if key in config["celery"]:
            config["celery"][key] = without_secrets(config["celery"][key])
    for name, said in config["shards"].items():
        config["shards"][name] = said if said.startswith("env:") else without_secrets(said)
    return {
        "source": settings.source,
        "database_url": without_secrets(settings.database_url),
        "redis_url": without_secrets(settings.redis_url) if settings.redis_url else None,
        "admin_key": HIDDEN if settings.admin_key else None,
        **config,
    }
