"""Certificates of an authority that a test makes, as PEM."""

from __future__ import annotations

import datetime as dt
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = dt.timedelta(days=1)


class Authority:
    """An authority; who trusts `pem` trusts what it issues."""

    def __init__(self, name: str = "authority") -> None:
        self._name, self._key = _named(name), ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(self._name, self._name, self._key.public_key(), days=1)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.pem = _pem(certificate)

    def issue(self, name: str, *, address: str = "127.0.0.1", days: int = 1) -> tuple[str, str]:
        """A certificate of an address and a name, and its key; with `days` below zero it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key.public_key(), days=days)
        known = [x509.IPAddress(ip_address(address)), x509.DNSName(name)]
        builder = builder.add_extension(x509.SubjectAlternativeName(known), False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return _pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key)

    def issue_files(self, folder: Path, name: str, **options: str | int) -> tuple[Path, Path]:
        """Likewise, in files."""
        paths = folder / f"{name}.crt", folder / f"{name}.key"
        for path, text in zip(paths, self.issue(name, **options), strict=True):  # type: ignore[arg-type]
            path.write_text(text)
        return paths


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - 3 * _DAY).not_valid_after(now + days * _DAY)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
