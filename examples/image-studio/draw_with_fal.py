"""Orders a picture with fal's own client, unchanged: `python draw_with_fal.py "a quiet pier"`. See README.md."""

from __future__ import annotations

import sys
from urllib.request import urlopen

import fal_client


def show(status: fal_client.Status) -> None:
    if isinstance(status, fal_client.Queued):
        print(f"{status.position} ahead", flush=True)
    elif isinstance(status, fal_client.InProgress):
        print("drawing", *[log["message"] for log in status.logs or []][-1:], flush=True)


result = fal_client.subscribe("studio/paint", {"prompt": sys.argv[1]}, with_logs=True, on_queue_update=show)
with urlopen(result["image"]["url"]) as picture, open("picture.png", "wb") as file:
    file.write(picture.read())
print("picture.png:", result["image"]["file_size"], "bytes")
