"""The small projects in `examples/`, run as their READMEs say."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from celery import Celery

from tests import redis_servers
from tests.celery_workers import CeleryWorker
from tests.integration.cli_process import DEADLINE_S, Up, environment, fairlead, running

EXAMPLES = Path(__file__).parents[2] / "examples"


def copied(name: str, folder: Path) -> Path:
    """The example in a folder of its own, where it may write its database."""
    return Path(shutil.copytree(EXAMPLES / name, folder / name))


def start(stack: ExitStack, command: str, folder: Path, *arguments: str, **env: str) -> Up:
    return stack.enter_context(running(command, folder, *(arguments or ("--config", "fairlead.toml")), env=env))


def script(folder: Path, *command: str, **env: str) -> str:
    """What the script of the example prints."""
    ended = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(env), capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_image_studio_draws_a_picture_and_shows_its_progress(tmp_path: Path) -> None:
    folder = copied("image-studio", tmp_path)
    with ExitStack() as stack:
        up = start(stack, "up", folder, "studio:app", SECONDS="0.5")
        printed = script(folder, "draw.py", "a quiet pier", "--output", "pier.png", FAIRLEAD_URL=up.url)
        assert "PROGRESS: step 10 of 10" in printed
        assert printed.splitlines()[-1].startswith("pier.png: ")
        refused = up.run("submit", "paint", "{}", "--user", "bob", "--wait")
        assert "a picture needs a prompt" in refused.out + refused.err
    picture = (folder / "pier.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">II", picture[16:24]) == (256, 256)


def test_the_image_studio_serves_fals_client(tmp_path: Path) -> None:
    folder = copied("image-studio", tmp_path)
    assert fairlead("certs", "dev", cwd=folder).code == 0
    tls = ("--certfile", "certs/cert.pem", "--keyfile", "certs/key.pem")
    with ExitStack() as stack:
        up = start(stack, "up", folder, "studio:app", *tls, SECONDS="0.5")
        host = up.url.removeprefix("https://")
        hosts = {"FAL_QUEUE_RUN_HOST": f"{host}/fal", "FAL_RUN_HOST": f"{host}/fal/run"}
        printed = script(
            folder, "draw_with_fal.py", "a quiet pier", FAL_KEY="any", SSL_CERT_FILE="certs/ca.pem", **hosts
        )
    assert printed.splitlines()[-1].startswith("picture.png: ")
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_celery_workers_run_the_tasks_that_fairlead_sends(tmp_path: Path) -> None:
    folder, redis = copied("celery-workers", tmp_path), redis_servers.server_url()
    redis_servers.empty(redis)
    urls = {"CELERY_BROKER_URL": redis, "CELERY_RESULT_BACKEND": redis}
    with ExitStack() as stack:
        app = stack.enter_context(Celery("tasks", broker=redis, backend=redis))
        stack.enter_context(CeleryWorker("tasks", app, pool="solo", concurrency=1, folder=folder, **urls))
        up = start(stack, "up", folder, **urls)
        done = up.run("submit", "render", '{"scene": "a harbour", "quality": "final"}', "--user", "ada", "--wait")
    assert "a harbour in final quality" in done.out, done.err


async def test_only_the_worker_on_the_gpu_machine_needs_the_model(distributed: dict[str, str], tmp_path: Path) -> None:
    gpu = copied("remote-gpu", tmp_path)
    web = Path(shutil.copytree(gpu, tmp_path / "web", ignore=shutil.ignore_patterns("weights.py")))
    urls = {name.upper(): url for name, url in distributed.items()}
    with ExitStack() as stack:
        api = start(stack, "api", web, **urls)
        start(stack, "manager", web, **urls)
        start(stack, "worker", gpu, "--services", "generate", **urls)
        done = api.run("submit", "generate", '{"prompt": "a lighthouse"}', "--user", "ada", "--wait")
    assert "A LIGHTHOUSE" in done.out, done.err


def test_every_example_is_listed(tmp_path: Path) -> None:
    table = (EXAMPLES / "README.md").read_text()
    assert {each.name for each in EXAMPLES.iterdir() if each.is_dir()} <= {
        line.split("](")[1].split("/")[0] for line in table.splitlines() if "](" in line
    }
    assert fairlead("config", "check", cwd=copied("celery-workers", tmp_path)).code == 0
