"""Creating, using and revoking keys, and what each role may do with jobs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fairlead.domain.access import Role, key_text
from fairlead.errors import InvalidInput, Unavailable
from fairlead.gateway.app import create_gateway
from fairlead.gateway.permissions import ENVIRONMENT, KEYLESS, Caller, user_in_reach
from fairlead.gateway.problems import Forbidden
from tests.integration.gateway_site import Site
from tests.integration.http_client import ask
from tests.integration.key_site import ECHO, JOBS, MakeSite, keys_of

# ---------------------------------------------------------------- the first key


async def test_the_first_key_must_be_an_admin_s_and_ends_keyless_access(still_site: Site) -> None:
    gateway = still_site.gateway
    for wanted in ({"role": "service"}, {"role": "user", "user_id": "ada"}):
        refused = await ask(gateway, "POST", "/admin/keys", json=wanted)
        assert (refused.status, refused.code) == (409, "wrong_state")
    assert (await ask(gateway, "GET", JOBS)).status == 200
    made = await ask(gateway, "POST", "/admin/keys", json={"role": "admin", "name": "ops"})
    assert made.status == 201
    assert (await ask(gateway, "GET", JOBS)).status == 401
    assert (await ask(gateway, "GET", JOBS, made.json["key"])).status == 200
    assert (await ask(gateway, "POST", "/admin/keys", made.json["key"], json={"role": "service"})).status == 201


async def test_with_an_environment_key_the_first_key_may_have_any_role(make_site: MakeSite) -> None:
    site = await make_site(running=False, admin_key="secret")
    made = await ask(site.gateway, "POST", "/admin/keys", "secret", json={"role": "user", "user_id": "ada"})
    assert made.status == 201
    assert (await ask(site.gateway, "GET", JOBS, made.json["key"])).status == 200
    assert (await ask(site.gateway, "GET", "/admin/keys", "secret")).status == 200


async def test_without_keys_an_unknown_key_is_refused(still_site: Site) -> None:
    unknown = key_text("0" * 12, bytes(32))
    refused = await ask(still_site.gateway, "GET", JOBS, unknown)
    assert refused.status == 401
    assert "needs none: leave it out" in refused.json["detail"]
    assert (await ask(still_site.gateway, "GET", JOBS, "of-another-server")).status == 200


async def test_revoking_the_last_key_does_not_restore_keyless_access(still_site: Site) -> None:
    new = await still_site.app.create_key("admin")
    assert (await ask(still_site.gateway, "DELETE", f"/admin/keys/{new.key.id}", new.text)).status == 204
    assert (await ask(still_site.gateway, "GET", JOBS)).status == 401
    assert (await ask(still_site.gateway, "GET", JOBS, new.text)).status == 401


async def test_without_keys_only_connections_to_loopback_are_served(still_site: Site) -> None:
    """With any Host: the server may have been bound to other addresses while there was a key."""
    for address, status in (
        ("192.0.2.7", 401),
        ("127.0.0.1", 200),
        ("::1", 200),
        ("::ffff:127.0.0.1", 200),
        ("::ffff:192.0.2.7", 401),
    ):
        assert (await ask(still_site.gateway, "GET", JOBS, server=address)).status == status


# ---------------------------------------------------------------- create, list, revoke


async def test_a_key_is_shown_once_and_stored_as_its_hash_only(still_site: Site, tmp_path: Path) -> None:
    admin = (await still_site.app.create_key("admin")).text
    made = await ask(
        still_site.gateway, "POST", "/admin/keys", admin, json={"role": "user", "user_id": "ada", "name": "laptop"}
    )
    shown = made.json
    secret = shown.pop("key").split("_")[2]
    listed = await ask(still_site.gateway, "GET", "/admin/keys", admin)
    assert listed.json["data"][-1] == shown
    assert {"role": "user", "user_id": "ada", "name": "laptop", "revoked_at": None}.items() <= shown.items()
    assert len(bytes.fromhex(secret)) == 32
    assert secret not in listed.body.decode()
    assert "hash" not in listed.body.decode()
    assert not [file for file in tmp_path.iterdir() if secret.encode() in file.read_bytes()]  # noqa: ASYNC240


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({}, "/role"),
        ({"role": "root"}, "/role"),
        ({"role": "user"}, "/user_id"),
        ({"role": "user", "user_id": ""}, "/user_id"),
        ({"role": "user", "user_id": "a\u202eb"}, "/user_id"),
        ({"role": "service", "user_id": "ada"}, "/user_id"),
        ({"role": "admin", "name": ""}, "/name"),
        ({"role": "admin", "name": "x" * 101}, "/name"),
        ({"role": "admin", "name": "a\nb"}, "/name"),
        ({"role": "admin", "key": "mine"}, "/key"),
    ],
)
async def test_an_invalid_key_request_names_the_field(still_site: Site, wanted: Any, pointer: str) -> None:
    refused = await ask(still_site.gateway, "POST", "/admin/keys", json=wanted)
    assert (refused.status, refused.json["pointer"]) == (422, pointer)
    assert await still_site.app.keys() == []


async def test_every_change_of_keys_is_audited_with_its_caller(still_site: Site) -> None:
    app, gateway = still_site.app, still_site.gateway
    first = await app.create_key("admin", name="ops", who="cli")
    made = (await ask(gateway, "POST", "/admin/keys", first.text, json={"role": "user", "user_id": "ada"})).json
    assert (await ask(gateway, "DELETE", f"/admin/keys/{made['id']}", first.text)).status == 204
    rows = await app._runtime.store.audit(limit=10)
    assert [(row.who, row.action, row.target) for row in rows] == [
        (f"ops ({first.key.id})", "key.revoke", made["id"]),
        (f"ops ({first.key.id})", "key.create", made["id"]),
        ("cli", "key.create", first.key.id),
    ]
    assert rows[1].details == {"role": "user", "user_id": "ada", "name": "ada"}
    assert made["key"] not in repr(rows)
    for refused, status in (("nonsense", 404), (made["id"], 409)):
        assert (await ask(gateway, "DELETE", f"/admin/keys/{refused}", first.text)).status == status
    assert len(await app._runtime.store.audit(limit=10)) == 3


async def test_the_audit_distinguishes_keys_of_the_same_name(still_site: Site) -> None:
    app, gateway = still_site.app, still_site.gateway
    twins = [await app.create_key("admin", name="ops") for _ in range(2)]
    for twin in twins:
        made = await ask(gateway, "POST", "/admin/keys", twin.text, json={"role": "user", "user_id": "ada"})
        assert made.status == 201
        row = (await ask(gateway, "GET", "/admin/audit", twin.text)).json["data"][0]
        assert row["who"] == f"ops ({twin.key.id})"
    assert KEYLESS.who == "keyless"
    assert ENVIRONMENT.who == "FAIRLEAD_ADMIN_KEY"


@pytest.mark.parametrize("name", ["cli", "keyless", "python", "FAIRLEAD_ADMIN_KEY"])
async def test_a_key_cannot_have_a_reserved_name(name: str, still_site: Site) -> None:
    with pytest.raises(InvalidInput, match=name):
        await still_site.app.create_key("admin", name=name)


async def test_no_key_and_no_ticket_is_ever_logged(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    site = await make_site(running=False, admin_key="s3cret-admin")
    key = (await ask(site.gateway, "POST", "/admin/keys", "s3cret-admin", json={"role": "service"})).json["key"]
    job_id = (await site.app.submit("echo", user_id="ada")).id
    ticket = (await ask(site.gateway, "POST", "/api/v1/tickets", key)).json["ticket"]
    for query in (f"ticket={ticket}", f"ticket={ticket}", f"key={key}"):
        await ask(site.gateway, "GET", f"{JOBS}/{job_id}/events", query=query)

    async def explode(*_: object, **__: object) -> None:
        raise RuntimeError("no reason")

    monkeypatch.setattr(site.app, "list_jobs", explode)
    assert (await ask(site.gateway, "GET", JOBS, key)).status == 500
    assert "/api/v1/tickets 201" in caplog.text
    for secret in (key, key.split("_")[2], ticket, "s3cret-admin"):
        assert secret not in caplog.text


# ---------------------------------------------------------------- what a user's key may do


async def test_a_user_s_key_submits_its_own_jobs_only(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    for body in (ECHO, {**ECHO, "user_id": "ada"}):
        made = await ask(still_site.gateway, "POST", JOBS, keys["ada"], json=body)
        assert made.status == 202
        assert (await still_site.app.get(made.json["job_id"])).user_id == "ada"
    refused = await ask(still_site.gateway, "POST", JOBS, keys["ada"], json={**ECHO, "user_id": "bob"})
    assert (refused.status, refused.code, refused.json["pointer"]) == (403, "forbidden", "/user_id")
    assert (await ask(still_site.gateway, "POST", JOBS, keys["ada"], json={**ECHO, "user_id": None})).status == 422
    assert (await ask(still_site.gateway, "POST", JOBS, keys["service"], json=ECHO)).status == 422
    made = await ask(still_site.gateway, "POST", JOBS, keys["service"], json={**ECHO, "user_id": "carol"})
    assert (await still_site.app.get(made.json["job_id"])).user_id == "carol"


async def test_a_user_s_key_submits_bulks_of_its_own_jobs_only(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    bulk = f"{JOBS}/bulk"
    made = await ask(still_site.gateway, "POST", bulk, keys["ada"], json={"jobs": [ECHO, {**ECHO, "user_id": "ada"}]})
    assert [(await still_site.app.get(job["job_id"])).user_id for job in made.json["jobs"]] == ["ada", "ada"]
    refused = await ask(
        still_site.gateway, "POST", bulk, keys["ada"], json={"jobs": [ECHO, {**ECHO, "user_id": "bob"}]}
    )
    assert (refused.status, refused.json["pointer"]) == (403, "/jobs/1/user_id")
    assert len((await still_site.app.list_jobs()).data) == 2
    for strange in ([], {"jobs": 7}, {"jobs": [7]}):
        assert (await ask(still_site.gateway, "POST", bulk, keys["ada"], json=strange)).status == 422


@pytest.mark.parametrize(
    ("caller", "asked", "given"),
    [
        ("ada", None, "medium"),
        ("ada", "high", "medium"),
        ("ada", "medium", "medium"),
        ("ada", "low", "low"),
        ("service", "high", "high"),
        ("admin", "high", "high"),
    ],
)
async def test_a_user_s_key_may_lower_its_priority_and_not_raise_it(
    still_site: Site, caller: str, asked: str | None, given: str
) -> None:
    keys = await keys_of(still_site.app)
    job = {**ECHO, "user_id": "ada", "priority": asked}
    one = await ask(still_site.gateway, "POST", JOBS, keys[caller], json=job)
    many = await ask(still_site.gateway, "POST", f"{JOBS}/bulk", keys[caller], json={"jobs": [job]})
    assert [one.json["priority"], many.json["jobs"][0]["priority"]] == [given, given]


async def test_lists_are_narrowed_to_the_user_s_own_jobs(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    jobs = {user: (await still_site.app.submit("echo", user_id=user)).id for user in ("ada", "bob")}

    async def listed(caller: str, query: str = "") -> set[str]:
        answer = await ask(still_site.gateway, "GET", JOBS, keys[caller], query=query)
        assert answer.status == 200
        return {job["job_id"] for job in answer.json["data"]}

    assert await listed("ada") == await listed("ada", "user_id=ada") == {jobs["ada"]}
    assert await listed("bob") == {jobs["bob"]}
    assert await listed("service") == await listed("admin") == set(jobs.values())
    assert await listed("service", "user_id=ada") == {jobs["ada"]}
    foreign = await ask(still_site.gateway, "GET", JOBS, keys["ada"], query="user_id=bob")
    assert (foreign.status, foreign.code) == (403, "forbidden")


async def test_idempotency_keys_are_per_user(still_site: Site) -> None:
    keys = await keys_of(still_site.app)
    header = {"idempotency-key": "order-17"}
    first, second, again = [
        (await ask(still_site.gateway, "POST", JOBS, keys[who], json=ECHO, **header)).json["job_id"]
        for who in ("ada", "bob", "ada")
    ]
    assert first == again != second


def test_user_in_reach() -> None:
    ada = Caller(Role.USER, "ada", "ada", "1")
    assert user_in_reach(ada, None) == user_in_reach(ada, "ada") == "ada"
    with pytest.raises(Forbidden):
        user_in_reach(ada, "bob")
    for other in (KEYLESS, Caller(Role.SERVICE, None, "web", "2")):
        assert user_in_reach(other, None) is None
        assert user_in_reach(other, "bob") == "bob"
    with pytest.raises(ValueError):
        Caller(Role.USER, None, "a user without an id would see all users", "3")


# ---------------------------------------------------------------- an unreachable database


async def test_while_the_database_is_unreachable_known_keys_and_probes_work(
    still_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = await keys_of(still_site.app)
    assert (await ask(still_site.gateway, "GET", JOBS, keys["ada"])).status == 200

    async def away() -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(still_site.app._runtime.store, "count_keys", away)
    await still_site.gateway.state.guard.key_cache.reread()
    assert (await ask(still_site.gateway, "GET", JOBS, keys["ada"])).status == 200
    assert (await ask(still_site.gateway, "GET", JOBS)).status == 401
    fresh = create_gateway(still_site.app)
    for key in (keys["ada"], None):
        unknown = await ask(fresh, "GET", JOBS, key)
        assert (unknown.status, unknown.code) == (503, "unavailable")
    assert (await ask(fresh, "GET", "/livez")).status == 200


# ---------------------------------------------------------------- rate limits


async def test_a_rate_limited_submit_has_retry_after(make_site: MakeSite) -> None:
    site = await make_site(running=False, submits_per_minute=3)
    keys = await keys_of(site.app)
    first = await ask(site.gateway, "POST", JOBS, keys["ada"], json=ECHO)
    assert first.headers["ratelimit-policy"] == '"user";q=3;w=60'
    assert first.headers["ratelimit"] == '"user";r=2;t=20'
    bulk = await ask(site.gateway, "POST", f"{JOBS}/bulk", keys["ada"], json={"jobs": [ECHO, ECHO]})
    assert bulk.headers["ratelimit"].startswith('"user";r=0;')
    for refused in (
        await ask(site.gateway, "POST", JOBS, keys["ada"], json=ECHO),
        await ask(site.gateway, "POST", JOBS, keys["service"], json={**ECHO, "user_id": "ada"}),
        await ask(site.gateway, "POST", f"{JOBS}/bulk", keys["ada"], json={"jobs": [ECHO]}),
    ):
        assert (refused.status, refused.code, refused.json["retryable"]) == (429, "rate_limited", True)
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert refused.headers["ratelimit-policy"] == '"user";q=3;w=60'
        assert refused.headers["ratelimit"].startswith('"user";r=0;t=')
    assert (await ask(site.gateway, "POST", JOBS, keys["bob"], json=ECHO)).status == 202
    assert len((await site.app.list_jobs()).data) == 4


async def test_a_repeated_submit_works_over_the_limit_and_does_not_count(
    make_site: MakeSite,
) -> None:
    site = await make_site(running=False, submits_per_minute=4)
    ada = {**ECHO, "user_id": "ada"}
    bulks = [{"jobs": [ada]}, {"jobs": [ada, ada]}]
    requests = [(JOBS, ada, "one"), *((f"{JOBS}/bulk", bulk, f"bulk {n}") for n, bulk in enumerate(bulks))]

    async def send(path: str, body: Any, key: str) -> Any:
        return await ask(site.gateway, "POST", path, json=body, **{"idempotency-key": key})

    first = await send(*requests[0])
    again = await send(*requests[0])
    assert first.headers["ratelimit"].startswith('"user";r=3;')
    assert again.headers["ratelimit"].startswith('"user";r=3;')
    for request in requests[1:]:
        assert (await send(*request)).status == 202
    for path, body, key in requests:
        assert (await send(path, body, "another")).code == "rate_limited"
        again = await send(path, body, key)
        assert (again.status, again.headers["idempotent-replayed"]) == (202, "true")
        assert again.headers["ratelimit"].startswith('"user";r=0;')
        other = {**ada, "feature_name": "shout"}
        refused = await send(path, other if path == JOBS else {"jobs": [other]}, key)
        assert (refused.status, refused.code) == (422, "idempotency_mismatch")
        assert refused.headers["ratelimit"].startswith('"user";r=0;t=')
    assert len((await site.app.list_jobs()).data) == 4
    assert (await ask(site.gateway, "POST", JOBS, json=ada)).code == "rate_limited"


async def test_other_errors_have_the_rate_limit_headers_too(make_site: MakeSite) -> None:
    site = await make_site(running=False, submits_per_minute=9, max_waiting_per_user=1)
    ada = {**ECHO, "user_id": "ada"}
    assert (await ask(site.gateway, "POST", JOBS, json=ada)).status == 202
    left = 8
    for status, path, body in (
        (429, JOBS, ada),
        (429, f"{JOBS}/bulk", {"jobs": [ada]}),
        (422, JOBS, {**ada, "feature_name": "no_such"}),
        (422, f"{JOBS}/bulk", {"jobs": [{**ada, "priority": "no such"}]}),
    ):
        left -= 1
        refused = await ask(site.gateway, "POST", path, json=body)
        assert refused.status == status
        assert refused.headers["ratelimit-policy"] == '"user";q=9;w=60'
        assert refused.headers["ratelimit"].startswith(f'"user";r={left};t=')


async def test_too_many_waiting_has_retry_after(make_site: MakeSite) -> None:
    site = await make_site(running=False, max_waiting_per_user=1)
    job = {**ECHO, "user_id": "ada"}
    assert (await ask(site.gateway, "POST", JOBS, json=job)).status == 202
    refused = await ask(site.gateway, "POST", JOBS, json=job)
    assert (refused.status, refused.code) == (429, "too_many_waiting")
    assert int(refused.headers["retry-after"]) >= 1


async def test_without_a_limit_there_are_no_rate_limit_headers(still_site: Site) -> None:
    made = await ask(still_site.gateway, "POST", JOBS, json={**ECHO, "user_id": "ada"})
    assert not [name for name in made.headers if name.startswith("ratelimit")]


# ---------------------------------------------------------------- in Python


async def test_a_key_created_in_python_is_validated_too(still_site: Site) -> None:
    for role, user_id in (("boss", None), ("user", None), ("user", "\0"), ("admin", "ada")):
        with pytest.raises(InvalidInput):
            await still_site.app.create_key(role, user_id=user_id)
    new = await still_site.app.create_key("admin")
    assert new.text not in repr(new)
