"""HTTPS: `fairlead certs dev`, the gateway with a certificate, and a certificate that changes."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import httpx2
import pytest

from fairlead.cli.client import _about_the_connection
from fairlead.cli.failure import Exit
from tests.integration.cli_process import DEADLINE_S, Up, fairlead, up

ENCRYPTED = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIC\n-----END ENCRYPTED PRIVATE KEY-----\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("authority")
    assert fairlead("certs", "dev", "certs", "--host", "gateway.test", cwd=folder).code == Exit.OK
    return folder / "certs"


def files(folder: Path) -> tuple[str, ...]:
    return ("project:app", "--certfile", str(folder / "cert.pem"), "--keyfile", str(folder / "key.pem"))


def client(folder: Path, served: Up) -> httpx2.Client:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    return httpx2.Client(verify=context, base_url=served.url, trust_env=False)


def serial_number(folder: Path, served: Up) -> str:
    """The serial number of the certificate that a new connection gets."""
    with client(folder, served) as http, http.stream("GET", "/livez") as response:
        certificate = response.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
        return str(certificate["serialNumber"])


def test_keys_are_private_and_a_second_run_keeps_the_authority(authority: Path) -> None:
    before = (authority / "ca.pem").read_bytes()
    assert fairlead("certs", "dev", str(authority), cwd=authority).code == Exit.OK
    assert (authority / "ca.pem").read_bytes() == before
    assert {path.stat().st_mode & 0o077 for path in authority.glob("*key.pem")} == {0}


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_the_gateway_serves_https_with_modern_tls_only(authority: Path, tmp_path: Path) -> None:
    with up(tmp_path, *files(authority)) as served:
        assert served.url.startswith("https://")
        with client(authority, served) as http:
            plain = http.get("/livez")
            named = http.get("/livez", headers={"Host": "gateway.test"})
            local = http.get("/livez", headers={"Host": "localhost:8000"})
        assert plain.status_code == 200
        assert named.headers["strict-transport-security"].startswith("max-age=")
        assert "strict-transport-security" not in local.headers
        old = ssl.create_default_context(cafile=str(authority / "ca.pem"))
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with httpx2.Client(verify=old, trust_env=False) as http, pytest.raises(httpx2.ConnectError):
            http.get(f"{served.url}/livez")
        environment = {"FAIRLEAD_URL": served.url, "SSL_CERT_FILE": str(authority / "ca.pem")}
        done = fairlead("submit", "echo", '{"n": 1}', "--wait", cwd=tmp_path, env=environment)
        assert done.code == Exit.OK, done.err
        no_authority = {"FAIRLEAD_URL": served.url, "SSL_CERT_FILE": ""}
        refused = fairlead("status", cwd=tmp_path, env=no_authority)
        assert refused.code == Exit.NO_CONNECTION
        assert "set SSL_CERT_FILE to the certificate of its authority" in refused.err
        assert "fairlead up" not in refused.err


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate in certificate chain", "set SSL_CERT_FILE"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] Hostname mismatch, certificate is not valid for 'a'", "for other names"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] IP address mismatch, certificate is not valid for '::1'", "for other names"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "use http://"),
        ("[Errno 111] Connection refused", "start it with `fairlead up`"),
    ],
)
def test_the_command_line_hints_at_what_is_wrong_with_the_connection(error: str, hint: str) -> None:
    assert hint in _about_the_connection(error)


def test_a_new_certificate_is_used_and_a_broken_one_is_not(authority: Path, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    assert fairlead("certs", "dev", str(folder), cwd=tmp_path).code == Exit.OK
    with up(tmp_path, *files(folder)) as served:
        first = serial_number(folder, served)
        (folder / "cert.pem").write_text("no certificate", encoding="utf-8")
        served.wait_for("cannot use the new certificate")
        assert serial_number(folder, served) == first
        assert fairlead("certs", "dev", str(folder), cwd=tmp_path).code == Exit.OK
        served.wait_for("loaded the new certificate")
        deadline = time.monotonic() + DEADLINE_S
        while serial_number(folder, served) == first:  # the first file may have been read before the second
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--keyfile", "key.pem"), "--keyfile needs --certfile"),
        (("--certfile", "missing.pem"), "missing.pem: No such file or directory"),
        (("--certfile", "key.pem"), "has no certificate, or no key that belongs to it"),
        (("--certfile", "cert.pem", "--keyfile", "other.pem"), "has no certificate, or no key that belongs to it"),
        (("--certfile", "cert.pem", "--keyfile", "encrypted.pem"), "cannot use the certificate cert.pem"),
    ],
)
def test_files_that_cannot_be_used_are_refused_at_the_start(
    arguments: tuple[str, ...], message: str, authority: Path, tmp_path: Path
) -> None:
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_bytes((authority / name).read_bytes())
    (tmp_path / "other.pem").write_bytes((authority / "ca-key.pem").read_bytes())
    (tmp_path / "encrypted.pem").write_text(ENCRYPTED, encoding="utf-8")
    refused = fairlead("up", "--port", "0", *arguments, cwd=tmp_path)
    assert (refused.code, message in refused.err) == (Exit.USAGE, True), refused.err
