"""TLS of the gateway: its certificate, which is loaded again when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from fairlead.cli.failure import Exit, Failure

log = logging.getLogger("fairlead.tls")

LOOK_EVERY_S = 2.0
# TLS 1.2 with forward secrecy and authenticated encryption only; TLS 1.3 has its own, all of them modern.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate, with its chain, and of its key. Both may be in one file."""

    certfile: Path
    keyfile: Path

    @classmethod
    def of(cls, certfile: str | None, keyfile: str | None) -> Certificate | None:
        """Raises a Failure if the files cannot be used."""
        if certfile is None:
            if keyfile is not None:
                raise Failure("--keyfile needs --certfile (server.certfile)", Exit.USAGE)
            return None
        certificate = cls(Path(certfile), Path(keyfile or certfile))
        try:
            certificate.load_into(server_context())
        except (OSError, ValueError) as error:
            raise Failure(f"cannot use the certificate {certfile}: {_reason(error)}", Exit.USAGE) from None
        return certificate

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the files into a context; later handshakes use them. A password is never asked for: it would block the
        process."""
        context.load_cert_chain(self.certfile, self.keyfile, password=_no_password)

    def version(self) -> tuple[tuple[int, int, int], ...] | None:
        """A value that changes when the files do; None while one is missing. Follows symbolic links, which is how
        Kubernetes and certbot replace files."""
        try:
            stats = [path.stat() for path in (self.certfile, self.keyfile)]
        except OSError:
            return None
        return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    return context


async def reload_when_changed(certificate: Certificate, context: ssl.SSLContext) -> None:
    """Load the certificate again whenever its files change. Files that do not fit together, because only one of them is
    replaced so far, are tried again; connections use the old certificate meanwhile."""
    loaded = reported = certificate.version()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        version = certificate.version()
        if version is None or version == loaded:
            continue
        try:
            certificate.load_into(server_context())  # the context in use never gets a certificate without its key
            certificate.load_into(context)
        except (OSError, ValueError) as error:
            if version != reported:
                log.error("cannot use the new certificate %s: %s", certificate.certfile, _reason(error))
                reported = version
        else:
            loaded = version
            log.info("loaded the new certificate %s", certificate.certfile)


def _no_password() -> str:
    raise ValueError("the key is encrypted; keys with a password are not supported")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{error.reason or error}: the file has no certificate, or no key that belongs to it"
    return getattr(error, "strerror", None) or str(error)
