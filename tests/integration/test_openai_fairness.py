"""Many users through few slots."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.integration.openai_site import HELLO, open_front
from tests.openai_upstream import WORDS, Upstream, begin_stream, chat, chunks, event

USERS, SLOTS, EACH = 50, 4, 4


async def test_fifty_users_share_four_slots_and_no_request_is_refused(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": SLOTS}) as front, front.client(timeout=120) as client:
        answers: list[str | None] = []

        async def ask(user: str) -> None:
            answer = await client.chat.completions.create(model="llama", messages=HELLO, user=user)
            answers.append(answer.choices[0].message.content)

        async with asyncio.TaskGroup() as group:
            for _ in range(EACH):
                for user in range(USERS):
                    group.create_task(ask(f"user-{user}"))
        assert answers == ["".join(WORDS)] * (USERS * EACH)
        assert front.upstream.most == SLOTS
        assert len(front.upstream.calls) == USERS * EACH


async def test_a_newcomer_waits_for_at_most_one_request_of_each_active_user(tmp_path: Path) -> None:
    async with open_front(tmp_path, service={"limit": 1}) as front, front.client(timeout=120) as client:
        front.upstream.gate.clear()
        active = 5

        async def ask(user: str) -> None:
            await client.chat.completions.create(model="llama", messages=HELLO, user=user)

        async with asyncio.TaskGroup() as group:
            for user in range(active):
                for _ in range(6):
                    group.create_task(ask(f"user-{user}"))
            while len((await front.app.list_jobs(limit=100)).data) < active * 6:
                await asyncio.sleep(0.01)
            await front.upstream.reaches(open=1)
            group.create_task(ask("newcomer"))
            while len((await front.app.list_jobs(user_id="newcomer")).data) < 1:
                await asyncio.sleep(0.01)
            front.upstream.gate.set()
        users = [call.json["user"] for call in front.upstream.calls]
        assert users.index("newcomer") <= 1 + active


async def spending(upstream: Upstream, request: web.Request, fields: dict[str, Any]) -> web.StreamResponse:
    """Answer at once. The answers of users whose name begins with `big` have a thousand times the tokens."""
    tokens = 100_000 if fields["user"].startswith("big") else 100
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": tokens + 9}
    await upstream.gate.wait()
    if not fields.get("stream"):
        return web.json_response(chat(fields) | {"usage": usage})
    response = await begin_stream(request)
    for each in chunks(fields)[:-1]:
        await response.write(each)
    await response.write(event({"object": "chat.completion.chunk", "choices": [], "usage": usage}))
    await response.write(b"data: [DONE]\n\n")
    return response


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first", ["big", "small"])
async def test_a_service_that_charges_tokens_serves_those_first_who_use_fewer(
    engines: dict[str, str], tmp_path: Path, first: str, stream: bool
) -> None:
    """All requests take equally long: charged by the second, the order would not depend on who uses more tokens."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    users = ("big ada", "small bob") if first == "big" else ("small ada", "big bob")
    service = {"limit": 1, "charge": "tokens"}
    async with open_front(tmp_path, service=service, engines=engines) as front, front.http() as client:

        async def ask(user: str) -> None:
            body = {"model": "llama", "messages": HELLO, "user": user, **options}
            answer = await client.post("/chat/completions", json=body)
            assert answer.status_code == 200, answer.text

        front.upstream.script.extend([spending] * 13)
        for user in users:
            await ask(user)
        front.upstream.gate.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(ask("small cyn"))
            await front.upstream.reaches(calls=3)
            for number in range(5):
                for user in users:
                    group.create_task(ask(user))
                    while len((await front.app.list_jobs(user_id=user)).data) < number + 2:
                        await asyncio.sleep(0.01)
            front.upstream.gate.set()
        order = [call.json["user"].partition(" ")[0] for call in front.upstream.calls[3:]]
        assert order == ["small"] * 5 + ["big"] * 5
