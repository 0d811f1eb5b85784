"""Six users, two models, one bot: `python examples/chatbot/run.py` simulates an evening of chat in a few seconds.

Everything runs in this process, on SQLite and memory. With DATABASE_URL and REDIS_URL set, any number of bots share the
two models. SECONDS=5 makes a picture take as long.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from bot import Bot
from chat import Chat
from models import Model

from fairlead import Fairlead

HERE = Path(__file__).resolve().parent
EVENING = (
    (101, "/image=flux=a cat"),
    (102, "/image=flux=a dog"),
    (103, "/image=sdxl=a ship"),
    (104, "/image=flux=a bird"),
    (105, "/image=flux=nothing"),
    (106, "/image=flux=a harbour"),
    (106, "/image=sdxl=a lighthouse"),
    (101, "/image=dalle=a cat"),
)


async def main() -> None:
    seconds = float(os.environ.get("SECONDS", "1.2"))
    models = {"flux": Model("flux", seconds), "sdxl": Model("sdxl", seconds * 1.5)}
    with tempfile.TemporaryDirectory() as folder:
        url = os.environ.get("DATABASE_URL") or f"sqlite:///{folder}/chatbot.db"
        app = Fairlead(HERE / "fairlead.toml", database_url=url)
        async with app.running():
            bot = Bot(app, Chat(), models)
            for user_id, text in EVENING:
                print(f"from {user_id}: {text}", flush=True)
                bot.receive(user_id, text)
                await asyncio.sleep(0.1)
            await bot.idle()


if __name__ == "__main__":
    asyncio.run(main())
