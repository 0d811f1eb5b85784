"""Time to the first token and tokens per second: in metrics, in the status, on the dashboard, from all processes; and
the text of streamed requests for people."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fairlead import Config, Fairlead
from fairlead.config import Settings
from fairlead.domain.model_stats import FIRST_TOKEN, Generation, ModelStats, since
from fairlead.domain.openai import text_of_events
from fairlead.engine import counters
from fairlead.gateway.app import create_gateway
from tests.integration.cli_process import fairlead
from tests.integration.gateway_site import served
from tests.integration.openai_site import HELLO, open_front, second_gateway
from tests.openai_upstream import PATIENCE_S, WORDS, event

TOKENS_OUT = 7


async def models_of(base: str, service: str = "llama") -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=base, timeout=20) as client:
        status = (await client.get("/queue/status")).json()
        return next(dict(each["models"]) for each in status["services"] if each["service"] == service)


async def test_the_figures_of_models_reach_every_gateway(
    tmp_path: Path, distributed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "EVERY", 0.1)
    async with open_front(tmp_path, engines=distributed) as front, second_gateway(front) as other:
        async with front.client() as client:
            stream = await client.chat.completions.create(model="llama", messages=HELLO, stream=True)
            assert [chunk async for chunk in stream]
            await client.chat.completions.create(model="llama", messages=HELLO)
        async with asyncio.timeout(PATIENCE_S):
            while (await models_of(other.base)).get("llama", {}).get("calls") != 2:
                await asyncio.sleep(0.1)
        figures = (await models_of(other.base))["llama"]
        assert (figures["tokens_in"], figures["tokens_out"]) == (18, 2 * TOKENS_OUT)
        assert figures["tokens_per_second"] > 0
        assert figures["request_tokens_per_second"] > 0
        assert 0 < figures["first_token_p50"] <= figures["first_token_p95"]
        overview = await other.app.dashboard.overview()
        assert overview["services"]["llama"]["models"]["llama"]["calls"] == 2
        job = (await front.app.list_jobs()).data[1]
        metrics = (await front.app.get(job.job_id)).context["step_0_llama"]["metrics"]
        assert 0 < metrics[FIRST_TOKEN] <= metrics["execution_time_ms"]
        async with httpx2.AsyncClient(base_url=front.base) as http:
            text = (await http.get("/metrics")).text
        assert 'fairlead_model_tokens_total{direction="out",model="llama",service="llama"} 14.0' in text
        assert 'fairlead_first_token_seconds_count{model="llama",service="llama"} 1.0' in text
        assert 'fairlead_model_seconds_total{model="llama",service="llama"}' in text


async def test_a_function_is_measured_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "EVERY", 0.1)
    app = Fairlead(Settings(Config(), f"sqlite:///{tmp_path}/fairlead.db"))

    @app.model("my-llm", limit=1)
    async def talk(messages: Any) -> Any:
        for word in WORDS:
            yield word

    async with app.running(), served(create_gateway(app)) as port:
        base = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=base, timeout=20) as client:
            body = {"model": "my-llm", "messages": HELLO, "stream": True}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        async with asyncio.timeout(PATIENCE_S):
            while not (figures := await models_of(base, "my_llm")):
                await asyncio.sleep(0.1)
        assert figures["my-llm"]["calls"] == 1
        assert figures["my-llm"]["first_token_p50"] > 0
        assert figures["my-llm"]["request_tokens_per_second"] is None, "functions report no tokens"


def test_what_was_counted_since_is_the_difference() -> None:
    stats = ModelStats()
    stats.count(Generation("m", 5, 10, 0.2, 2.0))
    before = stats.as_list()
    stats.count(Generation("m", 1, 20, 0.02, 4.0))
    assert since(stats, None) == stats.as_list()
    later = ModelStats()
    later.add(since(stats, before))
    assert (later.calls, later.tokens_in, later.tokens_out, later.seconds) == (1, 1, 20, 4.0)
    assert later.shown(10.0)["tokens_per_second"] == 2.0
    assert later.shown(10.0)["request_tokens_per_second"] == 5.0
    assert later.shown(10.0)["first_token_p95"] <= 0.025


def test_the_number_of_models_is_bounded() -> None:
    counted = counters.Counters()
    for number in range(counters.MOST_MODELS + 50):
        counted.generated("s", Generation(f"m{number}", 0, 1, None, 1.0))
    assert len(counted.models) == counters.MOST_MODELS + 1
    assert counted.models["s", counters.OTHER].calls == 50


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}, ""),
        (
            {
                "choices": [
                    {"index": 0, "delta": {"content": "one\ntwo \u2028"}},
                    {"index": 1, "delta": {"content": "x"}},
                ]
            },
            "one\ntwo \u2028",
        ),
        ({"choices": [{"delta": {"reasoning_content": "hm "}}]}, "hm "),
        ({"choices": [{"text": "plain"}]}, "plain"),
        ({"type": "response.output_text.delta", "delta": "word"}, "word"),
        ({"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}, "\nf: {}"),
        ({"error": {"message": "broken"}}, "\nbroken\n"),
        ({"choices": []}, ""),
        ({"choices": 5}, ""),
        ({"choices": [{"delta": "text"}]}, ""),
        ({"choices": [{"delta": {"content": "a", "tool_calls": ["b", {"function": 5}]}}]}, "a"),
    ],
)
def test_events_are_shown_as_text(value: Any, text: str) -> None:
    assert text_of_events(event(value).decode() + ": comment\n\ndata: [DONE]\n\n") == text


async def test_watch_prints_the_text_of_a_request(tmp_path: Path) -> None:
    async with open_front(tmp_path) as front, front.http() as client:
        answer = await client.post("/chat/completions", json={"model": "llama", "messages": HELLO, "stream": True})
        job_id = answer.headers["x-fairlead-job"]
        run = asyncio.to_thread
        shown = await run(fairlead, "--url", front.base, "watch", job_id, "--output", cwd=tmp_path)
        assert (shown.code, shown.out) == (0, "".join(WORDS) + "\n")
        raw = await run(fairlead, "--url", front.base, "watch", job_id, "--output", "--raw", cwd=tmp_path)
        assert raw.out.startswith("data: {")
