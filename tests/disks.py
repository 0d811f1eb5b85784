"""A small file system that a test can fill."""

from __future__ import annotations

import errno
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A file system of this size. Only root may mount one; for other users the test is skipped."""
    with tempfile.TemporaryDirectory(prefix="fairlead-disk-") as folder:
        Path(folder).chmod(0o755)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", folder]
        try:
            mounted = subprocess.run(command, check=False, capture_output=True)
        except FileNotFoundError:
            pytest.skip("mount is not installed")
        if mounted.returncode:
            pytest.skip("a file system cannot be mounted here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)


def fill(filler: Path) -> None:
    """Write to this file until its disk is full."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65536))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
