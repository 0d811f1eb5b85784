"""`FAIRLEAD_ADMIN_KEY`: a key that nobody can send back as it stands, or that anybody can guess, guards nothing."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "FAIRLEAD_ADMIN_KEY"
SHORTEST = 16
_MAKE = "make one with: openssl rand -hex 32"


def read(environ: Mapping[str, str], problems: list[str]) -> str | None:
    """What is around it goes: files of secrets end with a line break, and no header can carry one."""
    said = environ.get(VARIABLE)
    if not said:
        return None
    key = said.strip()
    if not key:
        problems.append(f"{VARIABLE}: it is blank; {_MAKE}, or unset it")
    elif not (key.isascii() and key.isprintable()):
        problems.append(f"{VARIABLE}: it has characters that a header cannot carry; {_MAKE}")
    return key


def too_short(key: str | None) -> str | None:
    """What is wrong with its length, if anything. On loopback it is a warning, beyond it a refusal."""
    if key is None or len(key) >= SHORTEST:
        return None
    return f"{VARIABLE}: it has {len(key)} characters, and can be guessed; {_MAKE}"
