"""The peers' environments: bench/.peers/venv and its siblings, and bench/peers/node/node_modules. Never our own.

A package that fails to install does not stop the others: its system is reported as missing, and the next run tries
again.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import fairlead
from bench.progress import say
from bench.systems import HERE, INSTALLED, NODE, Known

OURS = Path(fairlead.__file__).parent

FILES = {
    "venv": HERE / "peers" / "requirements.txt",
    "venv-arq": HERE / "peers" / "requirements-arq.txt",
    "venv-saq": HERE / "peers" / "requirements-saq.txt",
    "venv-litellm": HERE / "peers" / "requirements-litellm.txt",
    "venv-smg": HERE / "peers" / "requirements-smg.txt",
}


def install(systems: Iterable[Known]) -> None:
    """The requirements of these systems."""
    interpreters = {known.producer[0] for known in systems}
    compileall.compile_dir(OURS, quiet=1)  # as pip leaves the peers: the start of a worker is part of the measurement
    for name in FILES:
        if str(python_of(name)) in interpreters:
            install_python(name)
    if "node" in interpreters:
        _unless_done(NODE / "node_modules", NODE / "package.json", _npm)


def python_of(name: str) -> Path:
    """The interpreter of this environment, whether it exists or not."""
    return INSTALLED / name / "bin" / "python"


def install_python(name: str) -> None:
    """The packages of this environment."""
    _unless_done(INSTALLED / name, FILES[name], partial(_python, INSTALLED / name, FILES[name]))


def _unless_done(at: Path, wanted: Path, make: Callable[[], bool]) -> None:
    """A stamp records what was installed where; reinstall if either differs."""
    stamp, wanted_now = at / ".installed", f"{at}\n{wanted.read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted_now:
        say(f"installing {wanted.relative_to(HERE)}")
        if make():
            stamp.write_text(wanted_now)


def _python(at: Path, requirements: Path) -> bool:
    """Whether everything is installed."""
    if subprocess.run([sys.executable, "-m", "venv", "--clear", at], check=False).returncode:
        say(f"there is no virtual environment for {requirements.name}")
        return False
    pip = [str(at / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "-r", requirements], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return True
    for line in requirements.read_text().splitlines():
        if line and not line.startswith("#") and subprocess.run([*pip, line], check=False).returncode:
            say(f"{line} does not install")
    return False


def _npm() -> bool:
    if shutil.which("npm") is None:
        say("npm is missing, and with it the systems on Node")
        return False
    done = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"], cwd=NODE, check=False
    )
    if done.returncode:
        say("npm install failed: the systems on Node may be missing")
    return done.returncode == 0
