"""Connections to a coordinator, and why one fails: one line, and what to do.

gRPC reports of a failed handshake only that nothing answers, so one is made again by itself, with Python's own TLS. A device without TLS
shakes hands as well: a server that answers it wants TLS.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from edge.rpc.address import Address
from edge.rpc.credentials import ClientCredentials, ClientTls

_EXPIRED = {10}
_UNKNOWN_CA = {2, 18, 19, 20, 21}
_WRONG_NAME = {62, 64}
_NO_TLS = ("WRONG_VERSION", "HTTP_REQUEST", "RECORD_LAYER")
_VALIDITY = re.compile(rb"(?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)")
Why = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, the section of the configuration where what is wrong is mended, and the command that makes certificates."""

    name: str = "device"
    section: str = "coordinator"
    certificate_command: str = "edge-coordinator pki device NAME"


DEVICE = Caller()
ADMINISTRATOR = Caller("administrator", "admin", "edge-coordinator pki admin NAME")


class _TurnedAway(Exception):
    """The server ended the connection after the handshake: it does not take what this side showed, and gave no reason."""


def open_channel(address: Address, credentials: ClientCredentials, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
    """A new channel, over TLS where the credentials have it. Raises ConfigError for files that cannot be used."""
    tls, given = credentials.tls, [*options, *([("grpc.enable_http_proxy", 0)] if address.is_local else [])]
    if tls is None:
        return grpc.aio.insecure_channel(str(address), options=given)
    return grpc.aio.secure_channel(str(address), tls.channel_credentials(), options=[*given, *tls.channel_options()])


async def why_no_handshake(
    address: Address, credentials: ClientCredentials, timeout_s: float, caller: Caller = DEVICE
) -> Why | None:
    """Shake hands once to find out why a connection fails: one line and what to do, or None when TLS is not the reason."""
    if address.path:
        return None
    tls, section, who = credentials.tls, caller.section, f"the coordinator at {address}"
    if tls is None:
        if not await _speaks_tls(address, timeout_s):
            return None
        shown = f"{section}.tls.cert and {section}.tls.key, or {section}.token_file"
        return f"{who} wants TLS, and this {caller.name} has none", f"set {section}.tls.ca, and {shown}"
    try:
        context = ssl.create_default_context(cafile=str(tls.ca))
        context.set_alpn_protocols(["h2"])
        if tls.cert is not None:
            context.load_cert_chain(str(tls.cert), str(tls.key) if tls.key else None)
        async with asyncio.timeout(timeout_s):
            await _shake_hands(address, tls.server_name or address.host, context)
    except ssl.SSLCertVerificationError as error:
        return _why_unverified(who, error, tls, caller)
    except ssl.SSLError as error:
        reason = (error.reason or "").upper()
        if any(sign in reason for sign in _NO_TLS):
            return f"{who} speaks no TLS", f"remove {section}.tls, or set tls there"
        if "ALERT" not in reason and "CERTIFICATE" not in reason:
            why = f"{who} and this {caller.name} cannot agree on TLS ({reason or 'no reason given'})"
            return why, "compare both tls sections"
        return _why_turned_away(who, tls, caller, credentials.clock.now())
    except _TurnedAway:
        return _why_turned_away(who, tls, caller, credentials.clock.now())
    except (OSError, TimeoutError):
        return None
    return None


async def _speaks_tls(address: Address, timeout_s: float) -> bool:
    """Whether whoever listens there answers a TLS greeting, be it by refusing this side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "").upper()
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _shake_hands(address: Address, name: str, context: ssl.SSLContext) -> None:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
    try:
        if not await reader.read(1):  # the server's verdict on our certificate comes after the handshake
            raise _TurnedAway
    except ConnectionResetError as error:
        raise _TurnedAway from error
    finally:
        writer.transport.abort()


def _why_unverified(who: str, error: ssl.SSLCertVerificationError, tls: ClientTls, caller: Caller) -> Why:
    """The server's certificate was not believed."""
    if error.verify_code in _EXPIRED:
        return f"the certificate of {who} has expired", "renew it there: edge-coordinator pki server"
    if error.verify_code in _WRONG_NAME:
        hint = f"set {caller.section}.tls.server_name, or issue it with --name"
        return f"the certificate of {who} is for another name", hint
    why = f"does not verify: {error.verify_message}"
    if error.verify_code in _UNKNOWN_CA:
        why = f"comes from an authority that {tls.ca} does not hold"
    return f"the certificate of {who} {why}", "take ca.crt from its operator"


def _why_turned_away(who: str, tls: ClientTls, caller: Caller, now: float) -> Why:
    """The server did not take this side's certificate, or its having none."""
    if tls.cert is None:
        return f"{who} wants a certificate of this {caller.name}", f"set {caller.section}.tls.cert and {caller.section}.tls.key"
    ends_at = _end_of_certificate(tls.cert)
    if ends_at is not None and now >= ends_at:
        return f"this {caller.name}'s certificate {tls.cert} has expired", f"renew it: {caller.certificate_command}"
    return f"{who} does not accept this {caller.name}'s certificate {tls.cert}", f"ask its operator: {caller.certificate_command}"


def _end_of_certificate(path: Path) -> float | None:
    """Seconds since the epoch; None when it cannot be read. The two times of its validity are next to each other in every certificate."""
    try:
        der = ssl.PEM_cert_to_DER_cert(path.read_text())
    except (OSError, ValueError):
        return None
    found = _VALIDITY.search(der)
    if found is None:
        return None
    digits = (found[1] and b"20" + found[1]) or found[2]
    return datetime.strptime(digits.decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp()
