"""init: writes an app and a configuration to start from."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fairlead.cli.failure import Failure
from fairlead.cli.options import Json
from fairlead.cli.output import print_json, say

FILES = ("app.py", "fairlead.toml")


def init(
    directory: Annotated[Path, typer.Argument(help="Where to write the files; created if it does not exist.")] = Path(),
    json: Json = False,
) -> None:
    """Write app.py and a commented fairlead.toml to start from. Existing files are never overwritten."""
    targets = [directory / name for name in FILES]
    if existing := [str(target) for target in targets if target.exists()]:
        raise Failure(f"{', '.join(existing)} already exists; choose another directory: fairlead init DIRECTORY")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for target in targets:
            template = files("fairlead.cli") / "templates" / target.name
            with target.open("x", encoding="utf-8") as file:
                file.write(template.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"cannot write to {directory}: {error.strerror or error}") from None
    if json:
        print_json({"files": [str(target) for target in targets]})
        return
    enter = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    say(f"wrote {' and '.join(map(str, targets))}")
    say(f"start it:   {enter}fairlead up app:app")
    say('try it:     fairlead submit illustrated_story \'{"prompt": "a harbour"}\' --user ada --wait')
