"""Who is who between a SuperLink and its SuperNodes: an authority, a server's certificate, and the keys of nodes.

All are ECDSA on P-384. Certificates are PEM; a node's key is in OpenSSH's format, which is what Flower reads. What is
secret is written with mode 0600, and nothing that is there is ever written over.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cotune.core.errors import Code, CotuneError
from cotune.store import writing

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
SERVER, SERVER_KEY = "server.pem", "server.key"
LOCAL = ("localhost", "127.0.0.1")
YEARS = 2
EARLIER = timedelta(days=1)  # clocks of sites differ


@dataclass(frozen=True)
class Shown:
    """What a server's certificate says.

    Attributes:
        names: the hosts and addresses that it is for.
        begins: from when on it holds.
        ends: until when.
        signed: whether the authority beside it signed it.
        fits: whether the private key beside it is its own.
    """

    names: tuple[str, ...]
    begins: datetime
    ends: datetime
    signed: bool
    fits: bool


def make_authority(folder: Path) -> None:
    """An authority of its own: `ca.crt`, which every site gets, and `ca.key`, which stays.

    Raises:
        CotuneError: E_CONFIG where one of them is there already.
    """
    _check_free(folder / AUTHORITY, folder / AUTHORITY_KEY)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _name("cotune federation")
    public = key.public_key()
    builder = (
        _builder(name, name, public)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )
    _write_secret(folder / AUTHORITY_KEY, _pem(key))
    _write(folder / AUTHORITY, builder.sign(key, hashes.SHA384()).public_bytes(Encoding.PEM))


def make_server(folder: Path, names: Iterable[str] = ()) -> None:
    """The server's certificate, `server.pem`, signed by the authority of the folder, and its key, `server.key`.

    Args:
        folder: of the authority.
        names: hosts or addresses by which sites reach the server, beside `localhost` and `127.0.0.1`.

    Raises:
        CotuneError: E_CONFIG where one of them is there already, without an authority, and for what is no host.
    """
    _check_free(folder / SERVER, folder / SERVER_KEY)
    authority, signer = _authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    alternatives = [_alternative(name) for name in dict.fromkeys((*LOCAL, *names))]
    public = key.public_key()
    builder = (
        _builder(_name("cotune server"), authority.subject, public)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    _write_secret(folder / SERVER_KEY, _pem(key))
    _write(folder / SERVER, builder.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM))


def make_node_key(path: Path) -> None:
    """A node's key at `path`, and what the server is told of it, at `path` with `.pub` behind.

    Raises:
        CotuneError: E_CONFIG where one of them is there already.
    """
    _check_free(path, public_half(path))
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    _write(public_half(path), key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def public_half(path: Path) -> Path:
    """Where the public half of a node's key lies."""
    return path.with_name(f"{path.name}.pub")


def check_node_key(path: Path) -> None:
    """Raise E_CONFIG where a node's key cannot be read, is of another kind, or does not fit its public half."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
        public = load_ssh_public_key(public_half(path).read_bytes())
    except (OSError, ValueError) as error:
        raise _refused("cannot read a node's key", path, type(error).__name__) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _refused("a node's key is of another kind than Flower takes", path, type(key).__name__)
    if key.public_key() != public:
        raise _refused("a node's key and its public half do not fit", path, None)


def shown(folder: Path) -> Shown:
    """What the server's certificate of a folder says.

    Raises:
        CotuneError: E_CONFIG where it, its key, or the authority's certificate cannot be read.
    """
    authority, server = _certificate(folder / AUTHORITY), _certificate(folder / SERVER)
    try:
        server.verify_directly_issued_by(authority)
        signed = True
    except (ValueError, TypeError, InvalidSignature):
        signed = False
    key = _private(folder / SERVER_KEY)
    return Shown(
        names=_names(server),
        begins=max(server.not_valid_before_utc, authority.not_valid_before_utc),
        ends=min(server.not_valid_after_utc, authority.not_valid_after_utc),
        signed=signed,
        fits=key.public_key() == server.public_key(),
    )


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = [str(address) for address in found.get_values_for_type(x509.IPAddress)]
    return (*found.get_values_for_type(x509.DNSName), *addresses)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate, key = _certificate(folder / AUTHORITY), _private(folder / AUTHORITY_KEY)
    if key.public_key() != certificate.public_key():
        raise _refused("the authority's key is not that of its certificate", folder / AUTHORITY_KEY, None)
    return certificate, key


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _refused("cannot read a certificate", path, type(error).__name__) from error


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise _refused("cannot read a key", path, type(error).__name__) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _refused("not a key of an elliptic curve", path, type(key).__name__)
    return key


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=365 * YEARS))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not name.isascii() or not name.replace("-", "").replace(".", "").isalnum():
        raise CotuneError(Code.CONFIG, "not a host or an address", where="certificate", got=repr(name))
    return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_secret(path: Path, data: bytes) -> None:
    """`data` in a new file that nobody else may read, from its first byte on."""
    _put(path, data, 0o600)


def _write(path: Path, data: bytes) -> None:
    _put(path, data, 0o644)


def _put(path: Path, data: bytes, mode: int) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)


def _check_free(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            what = "it is there already and stays as it is"
            raise CotuneError(Code.CONFIG, what, where=str(path), fix="name another place")


def _refused(what: str, path: Path, got: str | None) -> CotuneError:
    return CotuneError(Code.CONFIG, what, where=str(path), got=got, fix="make it anew: see `cotune flower --help`")
