"""A small certificate authority for one fleet.

Keys are EC P-256. A client certificate names its holder (`holders`). Server certificates carry `serverAuth`, clients' `clientAuth`, so that
neither can replace the other. Keys are written with mode 0600, and no file is replaced unless that was asked for.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coordinator.service.holders import Holder, require_name
from edge.core.errors import StateError, UsageError
from edge.core.files import write_atomically

CA_DAYS, SERVER_DAYS, DEVICE_DAYS, ADMIN_DAYS = 1825, 90, 7, 1
MAX_DAYS = 1825
BACKDATE_S = 60.0


@dataclass(frozen=True, slots=True)
class Written:
    """The two files of a new certificate."""

    certificate: Path
    key: Path


class Authority:
    """The certificate authority in a folder: `ca.crt` for everyone, `ca.key` for nobody else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self, now: float, *, force: bool = False) -> Written:
        """A new authority. Raises StateError when one is there, or its folder cannot be made."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StateError(
                f"cannot make the folder {self.folder}: {error.strerror}", hint="name one that can be written"
            ) from error
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject("edge-coordinator authority")
        builder = _builder(name, name, key, now, CA_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        return _write(self.folder, "ca", builder.sign(key, hashes.SHA256()), key, force=force)

    def issue_server(self, names: Sequence[str], now: float, *, days: int = SERVER_DAYS, force: bool = False) -> Written:
        """A server certificate for host names and addresses. Raises UsageError for a name that is neither, or when there is none."""
        if not names:
            raise UsageError(
                "a server certificate needs a name", hint="give --name HOST or --name ADDRESS, as devices will write it"
            )
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        return self._issue("server", names[0], alternatives, ExtendedKeyUsageOID.SERVER_AUTH, now, days, force=force)

    def issue_client(self, holder: Holder, now: float, *, days: int, force: bool = False) -> Written:
        """A client certificate for a device or an admin. Raises UsageError for a malformed name."""
        require_name(holder.name)
        alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(holder.uri)])
        stem = f"{holder.role}-{holder.name}"
        return self._issue(stem, holder.name, alternatives, ExtendedKeyUsageOID.CLIENT_AUTH, now, days, force=force)

    def _issue(
        self,
        stem: str,
        common_name: str,
        alternatives: x509.SubjectAlternativeName,
        usage: x509.ObjectIdentifier,
        now: float,
        days: int,
        *,
        force: bool,
    ) -> Written:
        if not 1 <= days <= MAX_DAYS:
            raise UsageError(f"--days must lie in [1, {MAX_DAYS}], not {days}")
        ca, ca_key = self._load()
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(common_name), ca.subject, key, now, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(alternatives, critical=False)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        builder = builder.add_extension(authority, critical=False)
        return _write(self.folder, stem, builder.sign(ca_key, hashes.SHA256()), key, force=force)

    def _load(self) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
        try:
            certificate = x509.load_pem_x509_certificate((self.folder / "ca.crt").read_bytes())
            key = load_pem_private_key((self.folder / "ca.key").read_bytes(), None)
        except FileNotFoundError as error:
            raise StateError(
                f"there is no authority in {self.folder}", hint=f"run `edge-coordinator pki init {self.folder}`"
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise StateError(f"the authority in {self.folder} cannot be read") from error
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise StateError(f"ca.key and ca.crt in {self.folder} do not belong together")
        return certificate, key


def write_private(path: Path, data: bytes, *, force: bool = False, mode: int = 0o600) -> None:
    """Write a new file with this mode; an existing one is refused, or with `force` replaced whole. Raises StateError."""
    try:
        if force:
            write_atomically(path, data, mode=mode)
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except FileExistsError as error:
        raise StateError(
            f"{path} exists already and is not overwritten", hint="move it away, or give --force to replace it"
        ) from error
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}") from error


def _write(folder: Path, stem: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey, *, force: bool) -> Written:
    written = Written(folder / f"{stem}.crt", folder / f"{stem}.key")
    for path in (written.key, written.certificate):
        if path.exists() and not force:
            raise StateError(f"{path} exists already and is not overwritten", hint="move it away, or give --force to replace it")
    write_private(written.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), force=force)
    write_private(written.certificate, certificate.public_bytes(Encoding.PEM), force=force, mode=0o644)
    return written


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name):
        raise UsageError(f"{name!r} is neither a host name nor an address")
    return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, now: float, days: int
) -> x509.CertificateBuilder:
    begins = datetime.fromtimestamp(now - BACKDATE_S, UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(begins).not_valid_after(datetime.fromtimestamp(now, UTC) + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
