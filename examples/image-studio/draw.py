"""Orders a picture and saves it: `python draw.py "a quiet pier" --user ada`. FAIRLEAD_URL names the gateway."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairlead import Client


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt")
    parser.add_argument("--user", default="ada")
    parser.add_argument("--output", type=Path, default=Path("picture.png"))
    options = parser.parse_args()
    with Client() as client:
        job = client.submit("paint", {"prompt": options.prompt}, user_id=options.user)
        for event in job.watch():
            print(f"{event['type']}: {event['message']}", flush=True)
        picture = job.result()["image"]
        options.output.write_bytes(b"".join(client.download(picture)))
    print(f"{options.output}: {options.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
