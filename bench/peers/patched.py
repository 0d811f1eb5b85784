"""Runs a command's script with gevent's patches in place, which Huey's greenlets need."""

from __future__ import annotations

import runpy
import sys

from gevent import monkey

monkey.patch_all()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
