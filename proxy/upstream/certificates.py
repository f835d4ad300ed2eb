"""Make TLS contexts from certificate files, and give advice when a handshake fails.

Its tests: tests/test_tls.py.
"""

from __future__ import annotations

import contextlib
import errno
import ssl
import stat
from pathlib import Path
from typing import Final

from proxy.settings import Settings, SettingsError

NO_TLS_THERE: Final = "check that the server speaks TLS on this port (redis:// is without TLS)"
"""Advice if the server does not answer in TLS: Redis takes the handshake for a request and waits for more."""

LARGEST: Final = 4 * 1024 * 1024
"""Maximum size of a certificate file, in bytes; all authorities that a system trusts take 0.2 MB."""

_DATES: Final = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's codes for a certificate that is not yet valid, or has expired."""

_WRONG_NAME: Final = (62, 64)
"""OpenSSL's codes for a certificate for another host name or IP address."""


def upstream_context(settings: Settings) -> ssl.SSLContext:
    """Make the context for connections to a `rediss://` upstream.

    Raises:
        SettingsError: a file cannot be used.
    """
    try:
        _look_at(settings.tls_ca_file)
        context = ssl.create_default_context(cafile=settings.tls_ca_file)
    except OSError as error:
        raise _unusable(error, tls_ca_file=settings.tls_ca_file) from None
    if settings.tls_cert_file is not None:
        _load(context, tls_cert_file=settings.tls_cert_file, tls_key_file=settings.tls_key_file)
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def listening_context(settings: Settings) -> ssl.SSLContext:
    """Make the context for clients that connect to a `tls://` address.

    Raises:
        SettingsError: a file cannot be used.
    """
    assert settings.listen_tls_cert_file is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, listen_tls_cert_file=settings.listen_tls_cert_file, listen_tls_key_file=settings.listen_tls_key_file)
    if settings.listen_tls_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            _look_at(settings.listen_tls_ca_file)
            context.load_verify_locations(settings.listen_tls_ca_file)
        except OSError as error:
            raise _unusable(error, listen_tls_ca_file=settings.listen_tls_ca_file) from None
    return context


def _load(context: ssl.SSLContext, **files: Path | None) -> None:
    certificate, key = files.values()
    assert certificate is not None

    def no_password() -> str:
        # Without this function OpenSSL would prompt on the terminal and wait.
        raise ValueError("the key is encrypted; decrypt it for the proxy")

    try:
        _look_at(certificate, key)
        context.load_cert_chain(certificate, key, no_password)
    except (OSError, ValueError) as error:
        if isinstance(error, ssl.SSLError):
            error.strerror = _in_plain_words(error, certificate, key or certificate)
        raise _unusable(error, **files) from None


def _in_plain_words(error: ssl.SSLError, certificate: Path, key: Path) -> str:
    """Return what is wrong with a certificate or its key: for the usual mistakes OpenSSL has only codes."""
    if b"CERTIFICATE-----" not in certificate.read_bytes():
        return f"there is no certificate in {certificate}"
    if b"PRIVATE KEY-----" not in key.read_bytes():
        return f"there is no private key in {key}"
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    return str(error)


def _look_at(*files: Path | None) -> None:
    """Check that files can be read without waiting: on a pipe OpenSSL would wait for a writer, and block all clients.

    Raises:
        OSError: a file is not a regular file, or is too large.
    """
    for file in files:
        if file is None:
            continue
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if found.st_size > LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {LARGEST} bytes")


def listening_certificate_date(settings: Settings) -> str | None:
    """Return what is wrong with the dates of the certificate for clients, or None.

    This runs a handshake, in memory, between a client that trusts the certificate and a server that uses it: the
    standard library has no other way to check the dates.
    """
    if settings.listen_tls_cert_file is None:
        return None
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    near, far = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        _load(
            server, listen_tls_cert_file=settings.listen_tls_cert_file, listen_tls_key_file=settings.listen_tls_key_file
        )
        client.load_verify_locations(settings.listen_tls_cert_file)
        asking, shown = client.wrap_bio(far, near), server.wrap_bio(near, far, server_side=True)
        for side in (asking, shown, asking):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return _DATES.get(error.verify_code)
    except (OSError, SettingsError):
        pass  # other problems are reported when the certificate is used
    return None


def _unusable(error: Exception, **files: Path | None) -> SettingsError:
    named = ", ".join(f"{name} {path}" for name, path in files.items() if path is not None)
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SettingsError(f"{named}: cannot be used: {reason}")


def handshake_advice(error: BaseException, settings: Settings) -> str | None:
    """Return advice about a failed handshake with the upstream; None for any other error.

    Args:
        error: the error of a connection; its causes are checked too.
        settings: the settings.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return _advice(cause, settings)
        if isinstance(cause, ConnectionResetError):
            return _refused(settings)  # the reset may overtake the server's alert
        cause = cause.__cause__ or cause.__context__
    return None


def _advice(error: ssl.SSLError, settings: Settings) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _WRONG_NAME:
            return "the server's certificate is for another name: write that name in upstream"
        if error.verify_code in _DATES:
            return f"the server's certificate {_DATES[error.verify_code]}: renew it, or set this machine's clock"
        authority = settings.tls_ca_file or "the system's certificates"
        return f"the server's certificate is not trusted: check tls_ca_file ({authority})"
    return _refused(settings) if "ALERT" in (error.reason or "") else NO_TLS_THERE


def _refused(settings: Settings) -> str:
    if settings.tls_cert_file is None:
        return "the server ends the handshake: set tls_cert_file and tls_key_file if it wants a certificate"
    return f"the server ends the handshake: check tls_cert_file ({settings.tls_cert_file})"
