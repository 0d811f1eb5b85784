"""certs: makes certificates for development."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead.cli.failure import Failure
from fairlead.cli.options import Json
from fairlead.cli.output import print_json, say

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

certs = typer.Typer(no_args_is_help=True, help="Make certificates for development.")

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.pem", "ca-key.pem", "cert.pem", "key.pem"
LOCAL = ("localhost", "127.0.0.1", "::1")
# The longest that browsers accept.
VALID_DAYS = 397


@certs.command()
def dev(
    directory: Annotated[Path, typer.Argument(help="Where to write the files.")] = Path("certs"),
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="Another name or address; repeatable.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a local certificate authority, if there is none yet, and a certificate for localhost."""
    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise Failure("certificates need: pip install 'fairlead[tls]'") from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _make(directory, [*LOCAL, *(host or ())])
    except OSError as error:
        raise Failure(f"cannot write to {directory}: {error.strerror or error}") from None
    files = {name: str(directory / name) for name in (AUTHORITY, CERTIFICATE, KEY)}
    if json:
        print_json({"ca": files[AUTHORITY], "certfile": files[CERTIFICATE], "keyfile": files[KEY]})
        return
    say(f"start:    fairlead up --certfile {files[CERTIFICATE]} --keyfile {files[KEY]}")
    say(f"clients:  export SSL_CERT_FILE={files[AUTHORITY]}")


def _make(directory: Path, hosts: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if (directory / AUTHORITY).exists() and (directory / AUTHORITY_KEY).exists():
        authority = x509.load_pem_x509_certificate((directory / AUTHORITY).read_bytes())
        signing_key = load_pem_private_key((directory / AUTHORITY_KEY).read_bytes(), password=None)
    else:
        signing_key = _new_key(directory / AUTHORITY_KEY)
        authority = _signed("Fairlead development authority", [], signing_key, signing_key, None)
        _write(directory / AUTHORITY, _pem(authority))
    key = _new_key(directory / KEY)
    certificate = _signed(hosts[0], hosts, key, signing_key, authority)  # type: ignore[arg-type]
    _write(directory / CERTIFICATE, _pem(certificate))


def _signed(
    name: str,
    hosts: list[str],
    key: EllipticCurvePrivateKey,
    signing_key: EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
) -> x509.Certificate:
    """A certificate of these hosts, or the authority itself if `authority` is None."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS * (10 if authority is None else 1)))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
        .add_extension(_usage(authority is None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(signing_key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_key(path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write(path: Path, content: bytes) -> None:
    """Write a file that only this user can read, in one move: a gateway that looks at it never reads half of it."""
    new = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)
