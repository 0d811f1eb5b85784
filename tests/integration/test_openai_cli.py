"""`fairlead up --openai URL --limit N`, without any file."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import httpx2
import openai
import pytest

from fairlead.cli.failure import Exit
from fairlead.cli.loading import load_with_upstream
from fairlead.errors import ConfigError
from tests.integration.cli_process import fairlead, running
from tests.integration.openai_site import HELLO
from tests.openai_upstream import WORDS, running_upstream


async def test_one_command_puts_a_queue_in_front_of_a_server(tmp_path: Path) -> None:
    async with running_upstream("llama") as upstream:
        with running("up", tmp_path, "--openai", upstream.url, "--limit", "2") as server:
            assert server.banner["services"]["openai"]["limit"] == 2
            assert server.banner["urls"]["openai"] == f"{server.url}/v1"
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
                answers = await asyncio.gather(
                    *(client.chat.completions.create(model="llama", messages=HELLO) for _ in range(8))
                )
        assert {answer.choices[0].message.content for answer in answers} == {"".join(WORDS)}
        assert upstream.most <= 2


def test_the_environment_adds_settings_to_the_service_of_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRLEAD_SERVICES__OPENAI__MAX_ATTEMPTS", "20")
    service = load_with_upstream(None, None, "http://127.0.0.1:1/v1", 4).config.services["openai"]
    assert (service.openai, service.limit, service.max_attempts) == ("http://127.0.0.1:1/v1", 4, 20)


@pytest.mark.parametrize(("option", "limit"), [(4, 4), (None, 7)])
def test_the_option_limit_is_stronger_than_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: int | None, limit: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FAIRLEAD_SERVICES__OPENAI__LIMIT", "7")
    assert load_with_upstream(None, None, "http://127.0.0.1:1/v1", option).config.services["openai"].limit == limit


def test_a_service_of_the_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fairlead.toml").write_text('[services.openai]\nlimit = 1\nopenai = "http://127.0.0.1:1/v1"\n')
    with pytest.raises(ConfigError, match="already"):
        load_with_upstream(None, None, "http://127.0.0.1:2/v1", None)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--limit", "2"), "--limit needs --openai"),
        (("project:app", "--openai", "http://127.0.0.1:1/v1"), "declares its own services"),
        (("--openai", "vllm:8000"), "must begin with http"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    done = fairlead("up", *arguments, cwd=tmp_path)
    assert done.code == Exit.USAGE
    assert text in done.err


def test_the_password_of_an_upstream_is_not_shown(tmp_path: Path) -> None:
    url = "http://ada:s3cret@127.0.0.1:1/v1?token=s3cret"
    (tmp_path / "fairlead.toml").write_text(f'[services.llama]\nlimit = 1\nopenai = "{url}"\n')
    done = fairlead("config", "show", cwd=tmp_path)
    assert done.code == Exit.OK, done.err
    assert "127.0.0.1:1/v1" in done.out
    assert "s3cret" not in done.out


async def test_a_crash_holds_the_slots_of_an_openai_service_for_a_short_time_only(tmp_path: Path) -> None:
    async with running_upstream("llama") as upstream:
        config = f'[services.llama]\nopenai = "{upstream.url}"\nlimit = 1\nhold_after_crash = 2\n'
        (tmp_path / "fairlead.toml").write_text(config)
        body = {"model": "llama", "messages": HELLO, "stream": True}
        upstream.gate.clear()
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
            with running("up", tmp_path, "--config", "fairlead.toml") as crashed:
                lost = asyncio.create_task(client.post(f"{crashed.url}/v1/chat/completions", json=body))
                await upstream.reaches(open=1)
                crashed.signal(signal.SIGKILL)
                await asyncio.wait([lost])
            await upstream.reaches(open=0)
            upstream.gate.set()
            with running("up", tmp_path, "--config", "fairlead.toml") as restarted:
                answer = await client.post(f"{restarted.url}/v1/chat/completions", json={**body, "user": "bob"})
        assert answer.text.endswith("data: [DONE]\n\n")
        first, _, _ = answer.text.partition("\n")
        assert re.fullmatch(r": queued, position \d, about [12](-\d+)? s", first), "the estimate knows the hold"
