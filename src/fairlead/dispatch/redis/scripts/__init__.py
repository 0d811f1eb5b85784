"""The Lua scripts, loaded by name. All that is in one runs at every call of it, also the making of its functions. So:

--- @include part        stands for the text of `include/part.lua`; within a branch, it is made only there
--- @const NAME value    the name stands for the value: a local would be looked up, and handed to every function
--- @nest                what follows is a function of its own. What is above it is then handed on to its functions
                         without a search through all locals: of an exchange of one, 8 of 160 µs
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_INCLUDE = re.compile(r"^ *--- @include (\w+)$", re.MULTILINE)
_NEST = re.compile(r"^--- @nest$", re.MULTILINE)
_CONST = re.compile(r"^--- @const (\w+) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str


@cache
def script(name: str, package: str = __name__) -> Script:
    """One of ours, or of another package that keeps its scripts in the same way."""
    files = resources.files(package)

    def part(match: re.Match[str]) -> str:
        return (files / "include" / f"{match[1]}.lua").read_text("utf-8")

    source = _INCLUDE.sub(part, (files / f"{name}.lua").read_text("utf-8"))
    source, nested = _NEST.subn("return (function()", source)
    source += "end)()\n" * nested
    if values := dict(_CONST.findall(source)):
        names = re.compile(rf"\b({'|'.join(values)})\b")
        source = names.sub(lambda match: values[match[1]], _CONST.sub("--", source))
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
