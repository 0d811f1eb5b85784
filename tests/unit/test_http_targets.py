"""Which requests to upstreams the client for plain servers makes, and how they begin."""

from __future__ import annotations

import aiohttp
import pytest

from fairlead.executors.http_client import Address, HttpClient, Target, target_of


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("https://up/v1", {}),
        ("ftp://up/v1", {}),
        ("http://", {}),
        ("/v1", {}),
        ("http://up:y/", {}),
        ("http://ann:p@up/v1", {}),
        ("http://:p@up/v1", {}),
        ("http://up/v1", {"X": "a\nb"}),
        ("http://up/v1", {"X": "é"}),
        ("http://up/v1", {"X y": "z"}),
        ("http://up/v1", {"content-type": "x"}),
        ("http://up/v1", {"Transfer-Encoding": "chunked"}),
        ("http://up/v1", {"connection": "close"}),
        ("http://up/v1", {"Expect": "100-continue"}),
    ],
)
def test_other_requests_are_left_to_aiohttp(url: str, headers: dict[str, str]) -> None:
    assert target_of(url, headers) is None


def test_configured_headers_replace_the_defaults() -> None:
    target = target_of("http://[::1]:8000/v1/ü?q=ä", {"host": "up", "ACCEPT-Encoding": "gzip"})
    assert target is not None
    assert target.address == Address("::1", 8000)
    assert target.head.startswith("POST /v1/%C3%BC?q=%C3%A4 HTTP/1.1\r\n")
    assert "Host:" not in target.head
    assert "host: up\r\n" in target.head
    assert "identity" not in target.head
    assert "ACCEPT-Encoding: gzip\r\n" in target.head


async def test_a_host_that_has_no_encoding_is_not_a_url() -> None:
    with pytest.raises(aiohttp.InvalidURL):
        await HttpClient().post(Target(Address("a..b", 80), ""), {}, b"")
