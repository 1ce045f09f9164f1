"""Limit the number of connections to the page's server and the time of each client; print errors once."""

import asyncio
import errno
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from vision_attn.system.console import complain, printable

if sys.platform != "win32":  # which has no such limit
    import resource

LONGEST = 300.0
"""The seconds in which the head of a request must arrive, then its body, and in which an answer must be read."""
LINGER = 5.0
"""Seconds to wait for the rest of a request that already has its answer."""
MOST = 100
"""The largest number of connections at a time, but at most half of the file descriptors that the process may have."""
ACCEPTED, QUEUED = 16, 1024
"""The number of connections that are accepted at once, and of those that the operating system keeps waiting."""
PIECE = 2**14
"""The number of bytes that are parsed at a time, which is also the largest head of a request."""
CHUNKS, CHUNK = 500, 256
"""A body may have `CHUNKS` chunks, however small, and one more for each `CHUNK` bytes."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def most_connections() -> int:
    """Return the number of connections that are kept at a time."""
    limit = -1 if sys.platform == "win32" else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST if limit < 0 else max(1, min(MOST, limit // 2))  # -1: no limit


class Requests(h11.Connection):
    """The requests of a connection. A body in many tiny chunks is refused, since parsing a chunk of one byte takes as
    long as parsing one of 16 KB, and other clients would wait."""

    num_chunks, num_bytes = 0, 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.num_chunks, self.num_bytes = 0, 0
        elif isinstance(event, h11.Data):
            self.num_chunks, self.num_bytes = self.num_chunks + event.chunk_start, self.num_bytes + len(event.data)
            if self.num_chunks > CHUNKS + self.num_bytes // CHUNK:
                raise h11.RemoteProtocolError("the chunks of this body are too small")
        return event


class Protocol(H11Protocol, asyncio.BufferedProtocol):
    """Uvicorn's HTTP, with a time limit for the client and a limit of connections.

    The clock runs while a request arrives and while an answer is read, but not while the client waits for its answer.
    """

    connections: set[Any]
    """All open connections of this class. (Uvicorn's own annotation also names its other protocols.)"""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = Requests(h11.SERVER, PIECE)
        self.buffer = bytearray(PIECE)
        self.most = most_connections()
        self.clock: asyncio.TimerHandle | None = None
        self.is_gone = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.start_clock(LONGEST)
        if sum(not other.is_gone for other in self.connections) > self.most:
            self.make_room()

    def make_room(self) -> None:
        """Close the connection whose client has the least time left. If all clients are waiting for their answers,
        refuse this one."""
        others = [other for other in self.connections if other.clock and other is not self and not other.is_gone]
        if others:
            min(others, key=lambda other: other.clock.when()).cut()
        else:
            self.refuse(503, "the server answers too many requests: ask again later")

    def cut(self) -> None:
        """Close the connection, whatever has not been sent."""
        self.is_gone = True
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_clock()
        super().connection_lost(exc)

    def start_clock(self, seconds: float) -> None:
        self.stop_clock()
        if self in self.connections:
            self.clock = self.loop.call_later(seconds, self.cut)

    def stop_clock(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
        self.clock = None

    def keep_clock(self) -> None:
        """Let the clock run unless the client waits for its answer."""
        cycle = self.cycle
        if cycle is not None and not (cycle.more_body or cycle.response_complete or self.flow.write_paused):
            self.stop_clock()
        elif self.clock is None:
            self.start_clock(LONGEST)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer  # small, so that clients that send much take turns

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.buffer[:nbytes]))

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:  # a head has arrived
            self.start_clock(LONGEST + LINGER)  # after LONGEST, the application answers that the body is too slow
        self.keep_clock()

    def on_response_complete(self) -> None:
        self.start_clock(LINGER if self.conn.their_state is h11.SEND_BODY else LONGEST)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.keep_clock()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.keep_clock()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request. A client that already has its answer, or a part of it, gets nothing more."""
        self.refuse(400, "this is no request of HTTP/1.1, its head is larger than 16 KB, or its chunks are tiny")

    def refuse(self, status: int, reason: str) -> None:
        """Answer with an error and close the connection."""
        asked = self.conn.our_state is h11.SEND_RESPONSE
        if not asked and self.conn.our_state is not h11.IDLE:
            return self.cut()
        if self.cycle is not None:
            self.cycle.disconnected = True  # nothing that the application sends goes out any more
            self.cycle.message_event.set()
        content = f'{{"error":"{reason}"}}'.encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(content))), ("Connection", "close")]
        head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        body = h11.Data(b"" if asked and self.scope["method"] == "HEAD" else content)
        for event in (head, body, h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()
        self.is_gone = not self.transport.get_write_buffer_size()


class Listener(uvicorn.Server):
    """Serve `app`. It calls `stop` before it closes connections; a request without an answer one second later gets
    none."""

    def __init__(self, app: Any, stop: Callable[[], None]) -> None:
        options: dict[str, Any] = {"loop": "asyncio", "http": Protocol, "ws": "none", "lifespan": "off"}
        options |= {"log_config": None, "log_level": "critical", "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(app, **options, backlog=ACCEPTED, timeout_graceful_shutdown=1))
        self.stop = stop
        self.printed = set[object]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.failed(context))
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(QUEUED)  # asyncio has set it to what it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stop()
        await super().shutdown(sockets)

    def failed(self, context: dict[str, Any]) -> None:
        """Handle an error that asyncio found, which clients do not see."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            if self.is_new(error.errno):
                reason = f"no connection can be accepted ({error.strerror})"
                complain(f"{reason}; this is tried again each second", error=True)
        elif error is not None and not isinstance(error, ConnectionError):
            self.print(error)

    def print(self, error: Exception) -> None:
        """Print the traceback of a bug, only once, since a client may cause it repeatedly."""
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        place = (last.tb_frame.f_code, last.tb_lineno) if last is not None else None
        if self.is_new((type(error), place)) and sys.stderr is not None:
            lines = "".join(traceback.format_exception(error)).splitlines()
            print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)

    def is_new(self, what: object) -> bool:
        """Return whether this is the first time that `what` occurs."""
        known = what in self.printed
        self.printed.add(what)
        return not known
