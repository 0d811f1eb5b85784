"""A messenger without a network: messages of the bot are printed and recorded."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Message:
    """A message of the bot. Messengers let a bot edit its messages, so a user sees one line that is updated."""

    chat: Chat
    user_id: int
    text: str

    def edit(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self.chat.show(self.user_id, text)


@dataclass
class Chat:
    shown: list[tuple[int, str]] = field(default_factory=list)

    def send(self, user_id: int, text: str) -> Message:
        self.show(user_id, text)
        return Message(self, user_id, text)

    def show(self, user_id: int, text: str) -> None:
        self.shown.append((user_id, text))
        print(f"to {user_id}: {text}", flush=True)
