"""The bot: `/image=flux=a cat` draws a cat, when it is the user's turn."""

from __future__ import annotations

import asyncio
import re

from chat import Chat
from models import Model

from fairlead import Fairlead

HELP = "Send /image=MODEL=PROMPT, such as /image=flux=a cat, or /cancel. Models: "
_IMAGE = re.compile(r"/image=(?P<model>\w+)=(?P<prompt>.+)")


class Bot:
    def __init__(self, app: Fairlead, chat: Chat, models: dict[str, Model]) -> None:
        self._app = app
        self._chat = chat
        self._models = models
        self._open: dict[int, set[asyncio.Task[None]]] = {}

    def receive(self, user_id: int, text: str) -> None:
        """Handle a message. The reply is sent from a task, so that the next message can be handled meanwhile."""
        if text == "/cancel":
            for task in self._open.get(user_id, ()):
                task.cancel()
            return
        request = _IMAGE.fullmatch(text)
        if request is None or request["model"] not in self._models:
            self._chat.send(user_id, HELP + ", ".join(self._models))
            return
        task = asyncio.create_task(self._draw(user_id, request["model"], request["prompt"]))
        tasks = self._open.setdefault(user_id, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def idle(self) -> None:
        """Wait until all requests are answered."""
        while tasks := [task for tasks in self._open.values() for task in tasks]:
            await asyncio.wait(tasks)

    async def _draw(self, user_id: int, model: str, prompt: str) -> None:
        status = self._chat.send(user_id, f"{prompt}: in line for {model}")

        def show(position: int) -> None:
            status.edit(f"{prompt}: number {position} in line for {model}")

        try:
            async with self._app.turn(model, user_id=user_id, on_position=show, metadata={"prompt": prompt}) as turn:
                status.edit(f"{prompt}: {model} is drawing")
                path = await self._models[model].generate(prompt)
                turn.result = {"path": path}
            status.edit(f"{prompt}: here it is, {path}")
        except asyncio.CancelledError:
            status.edit(f"{prompt}: cancelled")
        except Exception as error:
            # The next user has the model already; this one gets the reason why there is no picture.
            status.edit(f"{prompt}: no picture, {error}")
