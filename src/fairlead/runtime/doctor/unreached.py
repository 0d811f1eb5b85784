"""What only the command line finds: that there is no gateway to ask."""

from __future__ import annotations

from fairlead.runtime.doctor.finding import Finding, Kind, Severity, sentence

UNREACHABLE = Kind("gateway-unreachable", Severity.ERROR, "the gateway cannot be asked")
REFUSED = Kind("gateway-refuses", Severity.ERROR, "the gateway does not let us ask")


def unreachable(url: str, reason: str) -> Finding:
    return UNREACHABLE.found(
        f"{sentence(reason)} What follows was looked at from here, without the lines and slots",
        fix="start it, `fairlead up` or `fairlead api`; or say where it is with FAIRLEAD_URL",
        about=url,
        url=url,
        reason=reason,
    )


def refused(url: str, reason: str) -> Finding:
    return REFUSED.found(
        f"{sentence(reason)} What follows was looked at from here, without the lines and slots",
        fix="set FAIRLEAD_API_KEY to an admin key; make one on the server: `fairlead keys create --role admin`",
        about=url,
        url=url,
        reason=reason,
    )
