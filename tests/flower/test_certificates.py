"""Authorities, certificates and keys: who they are for, who may read them, and that Flower can."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cotune.core.errors import Code, CotuneError
from cotune.flower import certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certificates.make_authority(folder)
    certificates.make_server(folder, ["federation.example.org", "10.0.0.7", "localhost"])
    certificates.make_node_key(folder / "site-a")
    return folder


def refused(code: Code = Code.CONFIG) -> pytest.RaisesExc[CotuneError]:
    return pytest.RaisesExc(CotuneError, check=lambda error: error.code is code)


def greeted(trust: Path, name: str, made: Path) -> str | None:
    """The protocol of a TLS connection to a server with our certificate, or why there is none."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "server.pem", made / "server.key")
    client = ssl.create_default_context(cafile=str(trust))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    here, there = socket.socketpair()

    def answer() -> None:
        try:
            server.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=name) as wrapped:
            return wrapped.version()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        here.close()
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "federation.example.org", "10.0.0.7"])
def test_a_site_that_has_the_authority_reaches_the_server_by_each_of_its_names(made: Path, name: str) -> None:
    assert greeted(made / "ca.crt", name, made) == "TLSv1.3"


def test_the_server_is_nobody_else(made: Path) -> None:
    assert "mismatch" in str(greeted(made / "ca.crt", "other.example.org", made)).lower()


def test_another_authority_does_not_know_the_server(made: Path, tmp_path: Path) -> None:
    certificates.make_authority(tmp_path)
    assert greeted(tmp_path / "ca.crt", "localhost", made) not in {"TLSv1.3", None}


def test_what_is_shown_is_what_the_certificate_says(made: Path) -> None:
    shown = certificates.shown(made)
    assert shown.names == ("localhost", "federation.example.org", "127.0.0.1", "10.0.0.7")
    assert (shown.signed, shown.fits) == (True, True)
    assert shown.begins < datetime.now(UTC) < shown.ends
    assert 729 <= (shown.ends - shown.begins).days <= 731


def test_a_certificate_of_another_authority_or_key_is_seen(made: Path, tmp_path: Path) -> None:
    certificates.make_authority(tmp_path)
    certificates.make_server(tmp_path)
    (tmp_path / "server.pem").write_bytes((made / "server.pem").read_bytes())
    shown = certificates.shown(tmp_path)
    assert (shown.signed, shown.fits) == (False, False)


def test_what_is_secret_is_for_its_owner_alone(made: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "server.key", "site-a"}


def test_nothing_is_written_over(made: Path) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    makes: list[tuple[Callable[[Path], None], Path]] = [
        (certificates.make_authority, made),
        (certificates.make_server, made),
        (certificates.make_node_key, made / "site-a"),
    ]
    for make, place in makes:
        with refused():
            make(place)
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_where_half_of_a_pair_is_there_the_other_is_not_made(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("of somebody else")
    with refused():
        certificates.make_authority(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ca.crt"]


def test_a_nodes_key_is_read_as_flower_reads_it(made: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    key = load_ssh_private_key((made / "site-a").read_bytes(), None)
    public = load_ssh_public_key((made / "site-a.pub").read_bytes())
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    assert key.public_key() == public
    certificates.check_node_key(made / "site-a")


def test_a_nodes_key_that_does_not_fit_or_cannot_be_read_is_refused(made: Path, tmp_path: Path) -> None:
    certificates.make_node_key(tmp_path / "b")
    (tmp_path / "b.pub").write_bytes((made / "site-a.pub").read_bytes())
    with refused():
        certificates.check_node_key(tmp_path / "b")
    (tmp_path / "b").write_text("no key")
    with refused():
        certificates.check_node_key(tmp_path / "b")
    with refused():
        certificates.check_node_key(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["https://example.org", "two hosts", "exämple.org", "host:8000", ""])
def test_what_is_no_host_is_no_name_of_a_server(tmp_path: Path, name: str) -> None:
    certificates.make_authority(tmp_path)
    with refused():
        certificates.make_server(tmp_path, [name])
    assert not (tmp_path / "server.key").exists()


def test_a_server_needs_the_authority_that_signs_it(tmp_path: Path, made: Path) -> None:
    with refused():
        certificates.make_server(tmp_path)
    certificates.make_authority(tmp_path)
    (tmp_path / "ca.crt").write_bytes((made / "ca.crt").read_bytes())
    with refused():
        certificates.make_server(tmp_path)
    assert not (tmp_path / "server.pem").exists()
