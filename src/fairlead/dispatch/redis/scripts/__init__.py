"""The Lua scripts, loaded by name. A line `--- @include part` stands for the text of `include/part.lua`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_INCLUDE = re.compile(r"^--- @include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


@cache
def script(name: str) -> Script:
    files = resources.files(__name__)

    def part(match: re.Match[str]) -> str:
        return (files / "include" / f"{match[1]}.lua").read_text("utf-8")

    source = _INCLUDE.sub(part, (files / f"{name}.lua").read_text("utf-8"))
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
