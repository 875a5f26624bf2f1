import ssl

import pytest

from router.api.tls import engine_tls, server_certificate
from router.contract.errors import BadSettings
from tests.support.certificates import Certificates

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


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
    assert "stays as it was" in caplog.text


def test_engines_are_believed_by_their_authority_alone(certificates):
    context, shown = engine_tls(certificates.authority, "", "")
    assert shown is None and context.verify_mode is ssl.CERT_REQUIRED and context.check_hostname
    assert len(context.get_ca_certs()) == 1
    context, shown = engine_tls(certificates.authority, *certificates.issue("router"))
    assert shown.context is context
