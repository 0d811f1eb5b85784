"""Where an app's broker is, as an address of Redis."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

from fairlead.errors import ConfigError

_CERT_REQS = {0: "none", 1: "optional", 2: "required"}


def redis_of_broker(app: Any) -> str:
    """Raises `ConfigError` if the broker is not Redis."""
    connection = app.connection_for_write()
    urls = [urlsplit(url) for url in connection.alt or [connection.as_uri(include_password=True)]]
    first = urls[0]
    if first.scheme == "redis+socket":
        return f"unix://{first.path}?{first.query}".rstrip("?")
    secure = first.scheme == "rediss" or bool(connection.ssl)
    scheme, query = "rediss" if secure else "redis", _tls_of(connection.ssl) or first.query
    if first.scheme in ("redis", "rediss"):
        return str(first._replace(scheme=scheme, query=query).geturl())
    if first.scheme == "sentinel":
        login, at, _ = first.netloc.rpartition("@")
        hosts = ",".join(url.netloc.rpartition("@")[2] for url in urls)
        master = connection.transport_options.get("master_name", "mymaster")
        database = first.path.strip("/") or "0"
        return f"{scheme}+sentinel://{login}{at}{hosts}/{master}/{database}" + (f"?{query}" if query else "")
    raise ConfigError([f"redis_url: the broker is {first.scheme}, not Redis; name a Redis for the counts"])


def _tls_of(ssl: Any) -> str:
    """`broker_use_ssl`, as the query of an address."""
    if not isinstance(ssl, dict):
        return ""
    return urlencode(
        {key: _CERT_REQS.get(value, value) if key == "ssl_cert_reqs" else value for key, value in ssl.items()}
    )
