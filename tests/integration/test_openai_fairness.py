"""Many users through few slots."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.openai_site import HELLO, open_front
from tests.openai_upstream import WORDS

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
