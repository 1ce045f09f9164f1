"""Clients of the page's server that are slow, many, or no browsers."""

import http.client
import io
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest
from PIL import Image

from tests import pretend
from tests.untrained import write_run
from vision_attn.api import load

pytest.importorskip("uvicorn", reason="the page needs the extra [web]: starlette, uvicorn")
from vision_attn.web import connections, make_server, server  # noqa: E402

PATIENCE = 60
"""Seconds after which a test fails that waits for something."""


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return load(write_run("ram_mnist28", tmp_path_factory.mktemp("run") / "ram"), device="cpu")


@contextmanager
def serving(model, host: str = "127.0.0.1") -> Iterator[server.Server]:
    with make_server([("ram", model)], host=host, port=0) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            yield running
        finally:
            running.shutdown()
            thread.join(PATIENCE)


@pytest.fixture
def served(classifier) -> Iterator[server.Server]:
    with serving(classifier) as running:
        yield running


@pytest.fixture
def held(monkeypatch) -> Iterator[SimpleNamespace]:
    """Answers are computed once `free` is set; `sizes` are those of the groups that are."""
    found, answers = SimpleNamespace(free=threading.Event(), sizes=[]), server.answers

    def waiting(model, verb, options, files):
        found.sizes.append(len(files))
        assert found.free.wait(PATIENCE)
        return answers(model, verb, options, files)

    pretend.answering(monkeypatch, waiting)
    yield found
    found.free.set()


def digit() -> bytes:
    kept = io.BytesIO()
    Image.new("L", (28, 28)).save(kept, "PNG")
    return kept.getvalue()


def connect(served: server.Server, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", served.server_port), timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def head(line: str, **headers: str) -> bytes:
    lines = [f"{line} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "" if "Host" in headers else "Host: localhost\r\n", ""]).encode()


def post(body: bytes, path: str = "/classify") -> bytes:
    return head(f"POST {path}", Content_Length=str(len(body))) + body


def status_of(connection: socket.socket) -> tuple[int, dict]:
    """The status and the JSON of the next answer."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


def ask(served: server.Server, sent: bytes) -> tuple[int, dict]:
    with connect(served, sent) as connection:
        return status_of(connection)


def closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection, whatever it still sends."""
    with suppress(ConnectionError):
        try:
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)


HALVES = {
    "the first head": [b"GET /mod"],
    "a later head": [head("GET /models"), b"GET /mod"],
    "a later body": [head("GET /models"), post(bytes(99))[:-1]],
    "a body that nobody reads": [post(bytes(99), "/models")[:-1]],
}


@pytest.mark.parametrize("parts", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("dripping", [False, True])
def test_each_request_of_a_connection_must_arrive_in_time(served, monkeypatch, parts, dripping) -> None:
    """Not its first one alone; a byte now and then is not enough."""
    pretend.impatient_server(monkeypatch, 0.5)
    *whole, half = parts
    with connect(served) as connection:
        for part in whole:
            connection.sendall(part)
            assert status_of(connection)[0] == 200
        connection.sendall(half)
        until = time.monotonic() + PATIENCE
        with suppress(ConnectionError):
            while dripping and time.monotonic() < until and not select.select([connection], [], [], 0.05)[0]:
                connection.sendall(b"x" * (half[:1] == b"G"))  # a body has one byte to come
        assert closed(connection)


def test_an_answer_must_be_read_in_time(served, monkeypatch) -> None:
    """Also one that another request waits behind."""
    pretend.impatient_server(monkeypatch, 0.5)
    served.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # or the system takes all of it at once
    alive = served._uvicorn.server_state.connections
    for requests in (1, 3):
        with connect(served, head("GET /lesson") * requests):
            wait_until(lambda: any(one.transport.get_write_buffer_size() for one in alive))
            wait_until(lambda: not alive)


def test_a_client_may_wait_longer_for_its_answer(served, held, monkeypatch) -> None:
    pretend.impatient_server(monkeypatch, 0.1)
    with connect(served, post(digit())) as connection:
        wait_until(lambda: held.sizes == [1])
        assert not select.select([connection], [], [], 1)[0]
        held.free.set()
        assert status_of(connection)[0] == 200


def test_idle_connections_make_room(served, monkeypatch) -> None:
    pretend.connections_at_most(monkeypatch, 8)
    idle = [connect(served, sent) for sent in (b"", b"GET /", post(bytes(9))[:-1]) for _ in range(10)]
    try:
        assert ask(served, head("GET /models"))[0] == 200
        wait_until(lambda: len(served._uvicorn.server_state.connections) <= 8)
        assert all(closed(one) for one in idle[:20])
    finally:
        for one in idle:
            one.close()


def test_a_server_whose_clients_all_wait_for_answers_refuses_more(served, held, monkeypatch, capfd) -> None:
    pretend.connections_at_most(monkeypatch, 3)
    waiting = [connect(served, post(digit())) for _ in range(3)]
    wait_until(lambda: len(served._asked) == 3)
    for _ in range(3):
        with connect(served) as refused:
            assert status_of(refused) == (503, {"error": "the server answers too many requests: ask again later"})
            assert closed(refused)
    held.free.set()
    assert [status_of(one)[0] for one in waiting] == [200] * 3
    for one in waiting:
        one.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("limit", "most"), [(128, 64), (10**6, 100), (resource.RLIM_INFINITY, 100), (1, 1)])
def test_connections_take_half_of_the_descriptors_at_most(monkeypatch, limit, most) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert connections.most_connections() == most


def test_clients_that_leave_cost_nothing(served, held) -> None:
    """Neither work, nor a place in a group."""
    first = connect(served, post(digit()))
    wait_until(lambda: held.sizes == [1])
    for _ in range(40):
        leaving = connect(served, post(digit()))
        wait_until(lambda: len(served._asked) == 2)
        leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # resets the connection
        leaving.close()
        wait_until(lambda: len(served._asked) == 1)
    last = connect(served, post(digit()))
    wait_until(lambda: len(served._asked) == 2)
    held.free.set()
    assert [status_of(one)[0] for one in (first, last)] == [200, 200] and held.sizes == [1, 1]
    wait_until(lambda: served._held == 0)
    first.close()
    last.close()


def test_the_bytes_of_all_uploads_are_limited(served, monkeypatch) -> None:
    monkeypatch.setattr(server, "HELD", 100_000)  # of 512 MB
    with connect(served, post(bytes(60_001))[:-1]) as first:
        wait_until(lambda: served._held == 60_000)
        status, said = ask(served, post(bytes(60_000)))
        assert status == 503 and "try again later" in said["error"]
        wait_until(lambda: served._held == 60_000)
        first.sendall(b"x")
        assert status_of(first)[0] == 400  # no image
    wait_until(lambda: served._held == 0)


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(served) -> None:
    asked = head("POST /classify", Content_Length="32000001", Expect="100-continue")
    assert ask(served, asked) == (413, {"error": "this file is too large: at most 32 MB"})


def chunked(body: bytes, size: int) -> bytes:
    parts = (body[start : start + size] for start in range(0, len(body), size))
    ends = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head("POST /classify", Transfer_Encoding="chunked") + ends + b"0\r\n\r\n"


def test_a_body_may_come_in_chunks_unless_they_are_tiny(served) -> None:
    image = digit() + bytes(60_000)  # a PNG ends before
    assert [ask(served, chunked(image, size))[0] for size in (200, 4096, 10**5)] == [200] * 3
    assert ask(served, chunked(digit(), 1))[0] == 200
    status, said = ask(served, chunked(image, 1))
    assert status == 400 and "tiny" in said["error"]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n", head("GET /", Host="localhost\r\nHost: localhost"), b"\x16\x03\x01\x02\0\r\n\r\n",
        head("GET /", a="b" * 40_000), head("GET /")[:-2] + b"a:\r\n" * 10_000 + b"\r\n", head("GET /" + "x" * 40_000),
        head("POST /classify", Content_Length="-1"), head("POST /classify", Content_Length="9" * 30),
        head("POST /classify", Content_Length="1\r\nContent-Length: 2"),
        head("POST /classify", Transfer_Encoding="gzip"),
        head("POST /classify", Transfer_Encoding="chunked") + b"zz\r\n",
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(served, sent, capfd) -> None:
    with connect(served) as connection:
        connection.sendall(sent)
        assert status_of(connection)[0] == 400 and closed(connection)
    assert capfd.readouterr() == ("", "")


def test_nonsense_behind_an_answer_closes_the_connection_in_silence(served, capfd) -> None:
    for start, nonsense in (
        (head("POST /models", Transfer_Encoding="chunked"), b"zz\r\n"),
        (head("POST /models", Transfer_Encoding="chunked"), b"1\r\nx\r\n" * 600),
        (head("GET /models", Content_Length="5"), b"12345nonsense\r\n\r\n"),
    ):
        with connect(served, start) as connection:
            assert status_of(connection)[0] in (200, 405)
            connection.sendall(nonsense)
            assert closed(connection)
    with connect(served, head("HEAD /", Transfer_Encoding="chunked") + b"zz\r\n") as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 400 Bad Request\r\n") and closed(connection)
    assert ask(served, head("GET /models"))[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_request_takes_few_texts(served) -> None:
    for number, said in ((16, "does not answer /look"), (17, "16 texts at most")):
        status, found = ask(served, post(digit(), "/look?" + "&".join(["text=cat"] * number)))
        assert status == 400 and said in found["error"]


def test_a_server_that_stops_tells_those_who_wait(classifier, held, capfd) -> None:
    """Nothing is printed, and what is sent but not read, or read but not sent, delays it for a second at most."""
    with serving(classifier) as running:
        clients = [connect(running, post(digit(), f"/{verb}")) for verb in ("classify", "digit") for _ in range(12)]
        clients += [connect(running, post(bytes(99))[:-1]) for _ in range(3)]
        wait_until(lambda: len(running._asked) == 27 and len(held.sizes) == 1)
        others = [connect(running, sent) for sent in (b"", b"GET /", head("GET /lesson"), chunked(b"x", 1)[:-5])]
        wait_until(lambda: running.is_computing)  # which is set after the worker has begun
        running.shutdown()
        assert [status_of(one) for one in clients] == [(503, {"error": "the server has been stopped"})] * 27
        wait_until(lambda: not running._uvicorn.server_state.tasks)
        held.free.set()
    for one in (*clients, *others):
        one.close()
    assert capfd.readouterr() == ("", "")


def test_errors_are_printed_once(classifier, capfd) -> None:
    """Those of accepting, which come again and again, and ours, whose messages may hold anything."""

    def fail(kind: type[Exception]) -> None:
        raise kind("\x1b[2J", "\n")

    with make_server([("ram", classifier)], port=0) as running:
        for _ in range(3):
            running._uvicorn.failed({"message": "socket.accept()", "exception": OSError(24, "Too many open files")})
            running._uvicorn.failed({"message": "", "exception": ConnectionResetError(104, "Connection reset")})
            running._uvicorn.failed({"message": "slow callback"})
            for kind in (KeyError, ValueError):
                try:
                    fail(kind)
                except Exception as error:
                    running._uvicorn.failed({"exception": error})
    printed = capfd.readouterr().err
    assert printed.count("no connection can be accepted (Too many open files)") == 1
    assert printed.count("Traceback") == 2 and printed.count("KeyError") == 1 and "\x1b" not in printed
    assert "reset" not in printed


def test_a_bug_is_told_to_the_client_and_printed_once(served, monkeypatch, capfd) -> None:
    def broken(*_) -> None:
        raise AssertionError("ours")

    pretend.answering(monkeypatch, broken)
    for _ in range(3):
        assert ask(served, post(digit())) == (500, {"error": "this is a bug in vision-attn: AssertionError"})
    assert capfd.readouterr().err.count("AssertionError: ours") == 1


@pytest.mark.slow
def test_a_process_with_few_descriptors_serves_among_idle_clients_and_ends_quietly(tmp_path) -> None:
    """150 connections that send nothing, or half a request, of which 128 descriptors have no room."""
    run = str(write_run("ram_mnist28", tmp_path / "run"))
    words = [sys.executable, "-m", "vision_attn", "serve", run, "--port", "0", "--device", "cpu"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    few = "import os, resource, signal, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
    few += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job ignores it
    few += "os.execv(sys.argv[1], sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-c", few, *words], **options) as process:
        try:
            ready = next(line for line in process.stdout if line.startswith("ready"))
            there = SimpleNamespace(server_port=int(ready.split()[2].rsplit(":")[-1]))
            idle = [connect(there, b"GET /"[: number % 6]) for number in range(150)]
            with ThreadPoolExecutor(12) as clients:
                asked = clients.map(lambda _: ask(there, post(digit())), range(12))
                assert [status for status, _ in asked] == [200] * 12
                last = [clients.submit(ask, there, post(digit())) for _ in range(12)]
                wait_until(lambda: any(one.done() for one in last))
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 130
                with suppress(ConnectionError, http.client.HTTPException):  # those that were not accepted yet
                    assert {one.result()[0] for one in last} <= {200, 503}
            for one in idle:
                one.close()
            assert process.stderr.read() == "vision-attn: interrupted\n"
        finally:
            process.kill()


def test_nothing_is_printed_about_damaged_images() -> None:
    """By Pillow or by libtiff; what is printed of other things needs no file descriptor."""
    code = """
import io, os, resource, sys, warnings
from PIL import Image
from vision_attn.data.images.open import Encoded, open_photograph
from vision_attn.system.console import complain, log_to_terminal

log_to_terminal()
exif = b"Exif\\0\\0MM\\0*\\0\\0\\0\\x08\\0\\x09\\x01\\x12"
for kind, mode, options in (
    ("TIFF", "1", {"compression": "group4"}), ("TIFF", "L", {"compression": "tiff_lzw"}), ("JPEG", "L", {"exif": exif})
):
    kept = io.BytesIO()
    Image.effect_noise((40, 40), 90).convert(mode).save(kept, kind, **options)
    content = bytearray(kept.getvalue())
    if kind == "TIFF":
        content[8:60] = bytes(range(52))
    try:
        open_photograph(Encoded("damaged", bytes(content)))
        print(kind, "opened")
    except ValueError as error:
        print(kind, "refused", error)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
complain("\\x1b[2J\\u2028")
warnings.warn("ours")
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    first, *rest = found.stderr.splitlines()
    assert first == r"vision-attn: \x1b[2J\u2028" and len(rest) == 1 and "UserWarning: ours" in rest[0], found.stderr
    assert [line.split()[0] for line in found.stdout.splitlines()] == ["TIFF", "TIFF", "JPEG"]
