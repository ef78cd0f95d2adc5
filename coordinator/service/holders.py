"""Whom a client certificate is for. It is in one SAN URI, `edge://device/NAME?epoch=N` or `edge://admin/NAME?epoch=N`; the epoch is
what `token revoke` raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from coordinator.control.devices import DEVICE_ID_FORM, is_device_id
from edge.core.errors import Unauthenticated, UsageError

SCHEME = "edge"
HOLDERS = ("device", "admin")


@dataclass(frozen=True, slots=True)
class Holder:
    """Whom a client certificate is for."""

    role: str
    """device or admin."""
    name: str
    epoch: int
    """Must still be the current one."""

    @property
    def uri(self) -> str:
        """As it is in the certificate."""
        return f"{SCHEME}://{self.role}/{self.name}?epoch={self.epoch}"


@dataclass(frozen=True, slots=True)
class ShownCertificate:
    """A client certificate that was checked: its holder and the seconds since the epoch between which it is valid."""

    holder: Holder
    not_before: float
    not_after: float


def require_name(name: str) -> None:
    """Raises UsageError for what no holder may be called."""
    if not is_device_id(name):
        raise UsageError(f"{name!r} is no name", hint=DEVICE_ID_FORM)


def holder_of(uris: Iterable[str]) -> Holder | None:
    """The holder that the URIs of a certificate name; None unless just one of them is ours, as our authority writes it."""
    ours = [uri for uri in uris if uri.startswith(f"{SCHEME}://")]
    parts = urlsplit(ours[0] if len(ours) == 1 else "")
    name, epochs = parts.path.removeprefix("/"), parse_qs(parts.query).get("epoch", [""])
    if parts.netloc not in HOLDERS or not is_device_id(name) or not (epochs[0].isascii() and epochs[0].isdigit()):
        return None
    holder = Holder(parts.netloc, name, int(epochs[0]))
    return holder if holder.uri == ours[0] else None


def shown_certificate(pem: bytes) -> ShownCertificate:
    """The holder in the first certificate of a PEM text. Raises Unauthenticated."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    except ValueError as error:
        raise Unauthenticated("the certificate cannot be read", metadata={"cause": "MALFORMED"}) from error
    holder = holder_of(uris)
    if holder is None:
        raise Unauthenticated("the certificate names no device of this fleet", metadata={"cause": "MALFORMED"})
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return ShownCertificate(holder, begins.timestamp(), ends.timestamp())
