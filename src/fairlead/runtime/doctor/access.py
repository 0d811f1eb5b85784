"""Who may ask: keys, where the gateway listens, and which pages may use it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from fairlead.domain.keys import Role
from fairlead.runtime.doctor.facts import Facts
from fairlead.runtime.doctor.finding import Finding, Kind, Severity

NO_KEYS = Kind("no-keys", Severity.NOTE, "there are no keys: whoever is on this machine may do everything")
ONE_KEY = Kind("only-admin-keys", Severity.NOTE, "everybody who asks must have an admin key")
PUBLIC = Kind("bound-publicly", Severity.NOTE, "the gateway listens on the network, without TLS of its own")
ANY_ORIGIN = Kind("any-origin", Severity.WARNING, "every page on the web may use the gateway from a user's browser")


def check(facts: Facts) -> Iterator[Finding]:
    if "*" in facts.config.server.allowed_origins:
        yield ANY_ORIGIN.found(
            'server.allowed_origins has "*"',
            fix="name the origins of your own pages, such as https://app.example.com, and restart the gateway: "
            f"`fairlead {'api' if facts.distributed else 'up'}`",
            allowed_origins=list(facts.config.server.allowed_origins),
        )
    live = [key for key in facts.keys or () if key.revoked_at is None]
    first = facts.settings.admin_key is not None
    public = [url for url in facts.listens_on if not is_loopback(urlsplit(url).hostname or "")]
    if public:
        yield PUBLIC.found(
            f"it listens on {', '.join(public)}: keys and jobs cross the network as they are",
            fix="put a proxy with TLS before it, and let it listen on loopback: `fairlead up --host 127.0.0.1`",
            severity=None if live or first else Severity.ERROR,
            listens_on=public,
        )
    if facts.keys is None:
        return
    if not live and not first:
        yield NO_KEYS.found(
            "neither FAIRLEAD_ADMIN_KEY is set nor is there a key in the database; so only loopback is served",
            fix="`fairlead keys create --role admin`, and then one of --role service or user for each who asks",
        )
    elif not any(key.role is not Role.ADMIN for key in live):
        yield ONE_KEY.found(
            "there is no key with the role service or user: whoever submits a job could also purge them all",
            fix="give each who asks a key of its own: `fairlead keys create --role service`, or --role user --user U",
            admin_keys=len([key for key in live if key.role is Role.ADMIN]) + first,
        )


def is_loopback(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
