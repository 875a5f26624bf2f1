import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from router.api.tls import engine_tls, server_certificate
from router.contract.errors import BadSettings
from tests.support.certificates import Certificates

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Of another authority."""
    return Certificates(tmp_path_factory.mktemp("other"))


def test_a_certificate_that_cannot_be_used_is_named(certificates, tmp_path):
    cert, key = certificates.issue("one")
    _, other_key = certificates.issue("other")
    for name, its_key, authority in (
        (str(tmp_path / "none.pem"), "", ""),
        (cert, other_key, ""),
        (cert, "", ""),
        (cert, key, str(tmp_path / "none.pem")),
    ):
        with pytest.raises(BadSettings, match=r"cannot be (used|read)"):
            server_certificate(name, its_key, authority)


def test_key_and_certificate_may_be_in_one_file(certificates, tmp_path):
    both = tmp_path / "both.pem"
    both.write_text("".join(open(path, encoding="ascii").read() for path in certificates.issue("one")))  # noqa: SIM115
    assert server_certificate(str(both), "", "").context.verify_mode is ssl.CERT_NONE


def test_a_broken_change_is_logged_and_leaves_the_context_usable(certificates, tmp_path, caplog):
    cert, key = (tmp_path / name for name in ("a.pem", "a.key"))
    for source, target in zip(certificates.issue("one"), (cert, key), strict=True):
        target.write_bytes(open(source, "rb").read())  # noqa: SIM115
    shown = server_certificate(str(cert), str(key), certificates.authority)
    assert shown.context.verify_mode is ssl.CERT_REQUIRED
    shown.refresh()
    assert not caplog.records
    cert.write_text("broken")
    shown.refresh()
    assert "stay as they were" in caplog.text


def test_engines_are_believed_by_their_authority_alone(certificates):
    context = engine_tls(certificates.authority, "", "").context
    assert context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert len(context.get_ca_certs()) == 1


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str = "127.0.0.1") -> None:
    """Raises ssl.SSLError when either side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=name), server.wrap_bio(to_server, to_client, True)]
    for _ in range(4):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    ends[1].write(b"x")
    assert ends[0].read() == b"x"


def copied(paths, folder, name):
    """Files of their own, which a test may replace."""
    made = [folder / f"{name}{number}" for number in range(len(paths))]
    for source, target in zip(paths, made, strict=True):
        target.write_bytes(Path(source).read_bytes())
    return made


def test_the_authority_of_clients_is_read_again_also_by_who_listens_already(certificates, other, tmp_path):
    (authority,) = copied([certificates.authority], tmp_path, "ca")
    shown = server_certificate(*certificates.issue("one"), str(authority))
    listening = shown.context
    ours, theirs = (
        engine_tls(certificates.authority, *issuer.issue("client")).context for issuer in (certificates, other)
    )
    handshake(ours, listening)
    with pytest.raises(ssl.SSLError):
        handshake(theirs, listening)
    authority.write_bytes(Path(other.authority).read_bytes())
    shown.refresh()
    handshake(theirs, listening)
    with pytest.raises(ssl.SSLError):
        handshake(ours, listening)


def test_the_authority_of_engines_is_read_again(certificates, other, tmp_path):
    (authority,) = copied([certificates.authority], tmp_path, "ca")
    believed = engine_tls(str(authority), "", "")
    engine, stranger = (server_certificate(*issuer.issue("e"), "").context for issuer in (certificates, other))
    handshake(believed.context, engine)
    authority.write_bytes(Path(other.authority).read_bytes())
    believed.refresh()
    handshake(believed.context, stranger)
    with pytest.raises(ssl.SSLError):
        handshake(believed.context, engine)
