"""The addresses at which the page is served, and requests that call it by another name."""

import socket

import pytest

from tests import pretend
from tests.untrained import write_run
from vision_attn.system.errors import UserError

pytest.importorskip("uvicorn", reason="the page needs the extra [web]: starlette, uvicorn")
from starlette.datastructures import Headers  # noqa: E402
from starlette.requests import Request  # noqa: E402

from tests.web.test_connections import ask, classifier, head, serving  # noqa: E402, F401
from vision_attn.commands import main  # noqa: E402
from vision_attn.web import make_server, server  # noqa: E402
from vision_attn.web.addresses import is_foreign, is_local, listening, url_of  # noqa: E402

LOCAL = (
    "127.0.0.1", "127.0.0.2", "127.255.1.3", "127.1", "127.0.1", "2130706433", "0x7f.1", "0x7F000001", "0177.0.0.1",
    "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "::ffff:7f00:2", "localhost", "localhost.", "page.localhost",
)  # fmt: skip
ELSEWHERE = (
    "", "evil.example", "128.1", "1.0.0.127", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.evil.example",
    "127.0.0.1.evil.example", "127.0.0.1 evil.example", "notlocalhost", "0x7g.1", "127.0.0.256", "::1::",
    "\xb2.0.0.1",
)  # fmt: skip


def test_addresses_of_this_machine_are_known_however_they_are_written() -> None:
    assert [host for host in LOCAL if not is_local(host)] == []
    assert [host for host in ELSEWHERE if is_local(host)] == []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"])
def test_a_local_address_is_called_by_a_local_name(address) -> None:
    """Or by the one that the user gave it. Whoever calls it otherwise was led here by a page of another site."""

    def foreign(host: str | None, **others: str) -> bool:
        return is_foreign(Headers({"host": host, **others} if host is not None else others), address, "Mine.example")

    named = [f"[{host}]" if ":" in host else host for host in LOCAL]
    assert [host for host in named for port in ("", ":7860", ":1") if foreign(host + port)] == []
    assert not foreign("LOCALHOST:7860") and not foreign("mine.example:7860")
    strange = ("127.0.0.1/x", "127.0.0.1?x", "127.0.0.1#x", "a@127.0.0.1", "127.0.0.1:x", "127.0.0.1:0",
               "127.0.0.1:99999", "[::1", "::1", "127.0.0.1, evil.example", "127.0.0.1\\@evil.example")  # fmt: skip
    assert [host for host in (None, *ELSEWHERE, *strange) if not foreign(host)] == []
    assert not foreign("127.1:9", origin="http://127.1:9") and foreign("127.1:9", origin="http://evil.example")
    assert foreign("127.0.0.1", origin="null") and foreign("127.0.0.1", origin="http://[x")


def test_another_address_has_any_name_but_no_foreign_pages() -> None:
    for host in ("evil.example", "10.0.0.1:7860", "[fe80::1]:7860"):
        assert not is_foreign(Headers({"host": host}), "10.0.0.1", "0.0.0.0")
        assert is_foreign(Headers({"host": host, "origin": "http://other.example"}), "10.0.0.1", "0.0.0.0")
    assert is_foreign(Headers({"host": "10.0.0.1/x"}), "10.0.0.1", "0.0.0.0")


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("127.0.0.2", "127.0.0.2", "http://127.0.0.2:{}"), ("127.1", "127.0.0.1", "http://127.1:{}"),
        ("LOCALHOST", "127.0.0.1", "http://LOCALHOST:{}"), ("2130706433", "127.0.0.1", "http://2130706433:{}"),
        ("::1", "::1", "http://[::1]:{}"), ("[::1]", "::1", "http://[::1]:{}"),
        ("::ffff:127.0.0.1", "127.0.0.1", "http://[::ffff:127.0.0.1]:{}"), ("0.0.0.0", "127.0.0.1", "http://0.0.0.0:{}"),
    ],
)  # fmt: skip
def test_a_server_is_reached_by_its_name_and_by_no_foreign_one(classifier, host, address, url, monkeypatch) -> None:  # noqa: F811
    try:
        with serving(classifier, host) as running:
            place = (address, running.server_port)
            monkeypatch.setattr(
                socket, "create_connection", lambda _, timeout, real=socket.create_connection: real(place)
            )
            assert running.url == url.format(running.server_port)
            for name, status in ((running.url.removeprefix("http://"), 200), ("localhost", 200), ("evil.example", 403)):
                assert ask(running, head("GET /models", Host=name))[0] == status, name
            status, said = ask(running, head("POST /classify", Host="127.0.0.1/x", Content_Length="0"))
            assert status == 403 and running.url in said["error"]
    except ValueError as error:
        assert ":" in host, error
        pytest.skip(f"this machine has no such address: {error}")


def test_the_path_of_a_request_does_not_depend_on_its_host() -> None:
    """The URL that starlette makes of both does."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/look",
        "query_string": b"text=cat",
        "server": ("127.0.0.1", 80),
    }
    scope |= {"headers": [(b"host", b"127.0.0.1/x")], "scheme": "http"}
    assert server.options_of(Request(scope)) == {"text": ["cat"]}


def test_a_host_that_cannot_be_used_is_refused(capsys, monkeypatch) -> None:
    def look_up(host: str, *arguments, real=socket.getaddrinfo, **options) -> list:
        if host.endswith(".invalid"):  # asks no other machine
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    for host, said in (
        ("", "the host is empty"), ("[]", "the host is empty"), ("no-such-host.invalid", "name another --host"),
        ("192.0.2.1", "name another --host"), ("a" * 70, "name another --host"), ("a..b", "name another --host"),
    ):  # fmt: skip
        assert main(["serve", "--host", host, "--port", "0"]) == 1
        assert said in capsys.readouterr().err
    with listening("127.0.0.1", 0) as taken, pytest.raises(UserError, match="name another --port"):
        make_server([], port=taken.getsockname()[1])


def test_addresses_of_version_6_are_in_brackets(tmp_path, monkeypatch, capsys) -> None:
    pretend.a_server_that(monkeypatch, lambda server: None)
    run = write_run("ram_mnist28", tmp_path / "ram")
    if main(["serve", str(run), "--host", "::1", "--port", "0"]) == 0:  # this machine has such an address
        assert "ready: open http://[::1]:" in capsys.readouterr().out
    assert url_of("::1", 7864) == url_of("[::1]", 7864) == "http://[::1]:7864"
    assert url_of("::", 80) == "http://[::]:80" and url_of("localhost", 80) == "http://localhost:80"
