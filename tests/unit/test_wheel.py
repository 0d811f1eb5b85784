"""The wheel contains every file that the code reads at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_has_the_dashboard_the_sql_and_the_scripts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    read = [
        path
        for path in (source / "fairlead").rglob("*")
        if path.suffix in (".sql", ".lua") or {"static", "templates"} & set(path.relative_to(source).parts)
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert any(path.name == "index.html" for path in read)
    assert {path.relative_to(source).as_posix() for path in read} - packed == set()
    pages = {f"fairlead/docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages
    assert pages - packed == set()
