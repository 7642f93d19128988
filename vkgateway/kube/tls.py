"""TLS identities from PEM texts. Private keys are never written to a disk."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator

from vkgateway.api.errors import InputError


def client_context(
    *,
    ca: bytes | str | None = None,
    cert: bytes | str | None = None,
    key: bytes | str | None = None,
    insecure: bool = False,
) -> ssl.SSLContext:
    """Return the TLS settings of a client: the authority of servers (`ca` or the system's) and a client certificate.

    Raises InputError if a text is not PEM, or if key and certificate do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=_to_text(ca))
        except (ssl.SSLError, ValueError) as error:
            raise InputError(f"the certificate authority is not a PEM certificate: {error}") from error
    if cert is not None and key is not None:
        load_identity(context, cert=cert, key=key)
    return context


def load_identity(context: ssl.SSLContext, *, cert: bytes | str, key: bytes | str) -> None:
    """Load the certificate chain and key of a client or server into a context. Raises InputError."""
    with _identity_file(_to_bytes(cert) + b"\n" + _to_bytes(key)) as path:
        try:
            context.load_cert_chain(path)
        except ssl.SSLError as error:
            raise InputError(f"certificate and key are not a matching PEM pair: {error}") from error


@contextlib.contextmanager
def _identity_file(content: bytes) -> Iterator[str]:
    """Yield a path with the content for OpenSSL: in memory on Linux, otherwise in a temporary file."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("vkgateway-identity", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile(prefix="vkgateway-") as file:
            file.write(content)
            file.flush()
            yield file.name


def _to_bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _to_text(text: bytes | str) -> str:
    return text.decode() if isinstance(text, bytes) else text
