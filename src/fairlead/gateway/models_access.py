"""The shapes of keys and tickets."""

from __future__ import annotations

from pydantic import Field

from fairlead.domain.keys import Role
from fairlead.gateway.models import MOMENT, Shape, example
from fairlead.gateway.models_operations import Text

KEY_ID = "3f9c0a1b2c3d"


class TicketRequest(Shape):
    model_config = example(user_id="ada")

    user_id: Text | None = Field(
        None, description="The ticket shows this user's jobs only; absent: all that the key may see."
    )


class Ticket(Shape):
    model_config = example(ticket=f"flt_{'0' * 64}_{'0' * 8}", expires_in=60)

    ticket: str
    expires_in: int = Field(description="Seconds.")


class KeyRequest(Shape):
    model_config = example(role="user", user_id="ada", name="ada's laptop")

    role: Role = Field(
        description="admin: everything; viewer: sees what an admin sees and changes nothing; "
        "service: acts for any user; user: sees and acts on its own jobs."
    )
    user_id: Text | None = Field(None, description="Whose key it is: for the role user, and only for it.")
    name: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="What lists and the audit call it; absent: the user, or the role.",
    )


class KeyInfo(Shape):
    model_config = example(
        id=KEY_ID, role="user", user_id="ada", name="ada's laptop", created_at=MOMENT, revoked_at=None
    )

    id: str
    role: Role
    user_id: str | None
    name: str
    created_at: str
    revoked_at: str | None


class NewKey(KeyInfo):
    model_config = example(
        id=KEY_ID,
        role="user",
        user_id="ada",
        name="ada's laptop",
        created_at=MOMENT,
        revoked_at=None,
        key=f"fl_{KEY_ID}_{'0' * 64}_{'0' * 8}",
    )

    key: str = Field(description="Shown this once, and stored nowhere: only its hash is.")


class KeyList(Shape):
    data: list[KeyInfo]


class SignIn(Shape):
    model_config = example(key=f"fl_{KEY_ID}_{'0' * 64}_{'0' * 8}")

    key: str = Field(min_length=1, max_length=500)


class SessionInfo(Shape):
    model_config = example(role="viewer", name="wall display", user_id=None, may_act=False, signed_in=True)

    role: Role
    name: str
    user_id: str | None = Field(description="Of a user's key: whose jobs it sees.")
    may_act: bool = Field(description="Whether the key may change anything.")
    signed_in: bool = Field(description="Whether a cookie said who it is; else a key did, or none is needed.")
