"""`headwater cluster certificates`: what it writes, and that two nodes accept each other with it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from headwater_cli import main


def _context(folder: Path, node: str, side: ssl._SSLMethod) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / f"{node}.pem", folder / f"{node}.key")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _shake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = server.wrap_bio(to_server, to_client, server_side=True)
    two = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for end in (two, one):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    one.do_handshake()
    two.do_handshake()


def test_each_node_is_accepted_in_both_directions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made"
    assert main(["cluster", "certificates", str(folder), "--nodes", "n1,n2"]) == 0
    names = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert names == ["ca.pem", "ca.key", "n1.pem", "n1.key", "n2.pem", "n2.key"]
    assert {name: (folder / name).stat().st_mode & 0o777 for name in ("ca.key", "n1.key")} == {
        "ca.key": 0o600,
        "n1.key": 0o600,
    }
    for server, client in (("n1", "n2"), ("n2", "n1")):
        listens = _context(folder, server, ssl.PROTOCOL_TLS_SERVER)
        dials = _context(folder, client, ssl.PROTOCOL_TLS_CLIENT)
        _shake(listens, dials, server)
        with pytest.raises(ssl.SSLCertVerificationError):
            _shake(listens, dials, client)


def test_existing_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "certificates", str(tmp_path), "--nodes", "n1"]) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert main(["cluster", "certificates", str(tmp_path), "--nodes", "n1,n2"]) == 0
    assert [Path(line).name for line in capsys.readouterr().out.splitlines()] == ["n2.pem", "n2.key"]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_half_a_pair_and_a_wrong_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("n/1", "", "ca"):
        assert main(["cluster", "certificates", str(tmp_path / "new"), "--nodes", name]) == 5
        assert "cannot be the name of a node" in capsys.readouterr().err
    assert main(["cluster", "certificates", str(tmp_path), "--nodes", "n1"]) == 0
    (tmp_path / "n1.key").unlink()
    assert main(["cluster", "certificates", str(tmp_path), "--nodes", "n1"]) == 5
    assert "only one of" in capsys.readouterr().err
