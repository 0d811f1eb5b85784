"""An image model that draws one picture at a time: `fairlead up studio:app`.

The model is a sunset of plain Python, so that the example needs no GPU. Put yours in its place: report progress, save
the picture, return the reference.
"""

from __future__ import annotations

import math
import os
import struct
import time
import zlib

from fairlead import Call, Fairlead, Permanent

STEPS = 10
SECONDS = float(os.environ.get("SECONDS", "3"))

app = Fairlead()


@app.service(limit=1, timeout=120)
def paint(call: Call) -> dict[str, object]:
    prompt, size = call.params.get("prompt"), int(call.params.get("size", 256))
    if not prompt:
        raise Permanent("a picture needs a prompt")
    rows: list[bytes] = []
    for step in range(STEPS):
        time.sleep(SECONDS / STEPS)
        rows += [row(y, size, len(prompt)) for y in range(len(rows), (step + 1) * size // STEPS)]
        call.progress((step + 1) / STEPS, f"step {step + 1} of {STEPS}")
    picture = call.save("picture.png", png(rows, size), "image/png")
    return {"prompt": prompt, "image": picture}


def row(y: int, size: int, seed: int) -> bytes:
    """One line of a sunset over the sea."""
    pixels = bytearray()
    horizon, sun = size * 0.6, size * (0.35 + 0.1 * math.sin(seed))
    for x in range(size):
        if math.hypot(x - size * 0.5, y - sun) < size * 0.15:
            pixels += bytes((255, 220, 120))
        elif y < horizon:
            pixels += bytes((250 - y * 80 // size, 120 + y * 60 // size, 90 + y * 130 // size))
        else:
            wave = int(12 * math.sin(x / 9 + y * y / size))
            pixels += bytes((30 + wave, 60 + wave, 110 + wave))
    return bytes(pixels)


def png(rows: list[bytes], size: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + each for each in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
