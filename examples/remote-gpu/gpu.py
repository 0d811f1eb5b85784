"""The service. Both machines have this file; only the one with the GPU has `weights.py` and what it imports."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable

from fairlead import Call


@functools.cache
def model() -> Callable[[str], str]:
    """Load the weights once, with the first call. Imported here, so that the gateway needs neither them nor PyTorch."""
    from weights import load

    return load()


def generate(call: Call) -> dict[str, str]:
    text = model()(call.params["prompt"])
    call.progress(0.9, "generated")
    return {"text": text, "machine": platform.node()}
