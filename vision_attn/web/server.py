"""The server of the web page: models in memory, images in requests; nothing of either is stored or logged.

POST /caption, /look and /classify take an image file as their body, and the number of a model as `?model=`; /look also
takes a `text=`, which may be repeated, and a `method=`. /digit takes a picture of 28 x 28 pixels, and puts it among
clutter first. The answer is JSON: `{"text":, "page":}` with the result's `record`, or `{"error":}`. GET /photographs
lists the photographs that come with the package, and /photographs/NAME is one of them. GET /lesson is the lesson of
docs/lesson.
"""

import asyncio
import socket
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from vision_attn.data.images.isolated import Decoders
from vision_attn.data.images.limits import TooLarge
from vision_attn.data.images.open import Encoded
from vision_attn.results.explainer import Explainer
from vision_attn.results.model import Model
from vision_attn.results.result_list import BATCH
from vision_attn.system.console import printable
from vision_attn.system.files import ours
from vision_attn.web.answers import OPTIONS, answers, check_served, decode, described, number_of, verbs

LARGEST = 32_000_000
"""Bytes of an upload."""
LONGEST = 300.0
"""Seconds until a request must have arrived."""
PHOTOGRAPHS = "docs/photographs"
"""To click on the page."""
LESSON = "docs/lesson/index.html"
LOCAL = ("127.0.0.1", "localhost", "::1")
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Answer = Callable[[list[Encoded]], list[Any]]
Group = list[tuple[Encoded, "asyncio.Future[Any]"]]
"""Files that are answered together, each with its answer."""


class Server:
    """Serves `models`, named, until `shutdown` or Ctrl-C."""

    def __init__(self, models: Sequence[tuple[str, Model | Explainer]], host: str, port: int) -> None:
        self.models, self.local = list[tuple[str, Model | Explainer]](), host in LOCAL
        for name, model in models:
            self.add(name, model)
        self.socket = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.server_port: int = self.socket.getsockname()[1]
        # Read now: no name of a request is ever looked up in the file system.
        self.photographs = {file.name: file.read_bytes() for file in sorted((ours() / PHOTOGRAPHS).glob("*.jpg"))}
        pages = [Route("/", self.page), Route("/models", self.names), Route("/photographs", self.examples)]
        pages += [Route("/photographs/{name}", self.example), Route("/lesson", self.lesson)]
        asked = [Route(f"/{verb}", self.answer, methods=["POST"]) for verb in OPTIONS]
        app = Starlette(routes=[*pages, *asked], exception_handlers={HTTPException: refusal})
        options = {"log_config": None, "log_level": "error", "access_log": False, "server_header": False}
        config = uvicorn.Config(self.checked(app), http=Protocol, ws="none", lifespan="off", **options)
        config.timeout_graceful_shutdown = 1
        self._uvicorn = uvicorn.Server(config)
        self._worker = ThreadPoolExecutor(1)  # models answer one after the other, always in the same thread
        self._free = asyncio.Lock()
        self._decoders = Decoders()
        self._decoded = asyncio.Semaphore(BATCH)  # uploads that are held as pixels
        self._waiting: dict[tuple, Group] = {}

    def add(self, name: str, model: Model | Explainer) -> None:
        """Serve one more model. Raises ValueError for one that answers nothing that the page can ask."""
        check_served(model)
        self.models.append((name, model))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._uvicorn.started:  # or it has closed it
            self.socket.close()
        self._worker.shutdown(wait=False)
        self._decoders.close()

    def serve_forever(self) -> None:
        self._decoders.start()
        self._uvicorn.run(sockets=[self.socket])

    def shutdown(self) -> None:
        self._uvicorn.should_exit = True

    def checked(self, app: Starlette) -> Any:
        """The application, for requests of its own page alone."""

        async def respond(scope: Any, receive: Any, send: Any) -> None:
            refused = scope["type"] == "http" and is_foreign(Headers(scope=scope), self.local)
            await (failure(403, "this request comes from another site") if refused else app)(scope, receive, send)

        return respond

    async def page(self, _: Request) -> Response:
        page = files("vision_attn.web").joinpath("index.html").read_text(encoding="utf-8")
        return HTMLResponse(page, headers=HEADERS)

    async def lesson(self, _: Request) -> Response:
        return HTMLResponse(await run_in_threadpool((ours() / LESSON).read_bytes), headers=HEADERS)

    async def names(self, _: Request) -> Response:
        return JSONResponse([{"name": name, **described(model)} for name, model in self.models], headers=HEADERS)

    async def examples(self, _: Request) -> Response:
        return JSONResponse([*self.photographs], headers=HEADERS)

    async def example(self, request: Request) -> Response:
        if (content := self.photographs.get(request.path_params["name"])) is None:
            raise HTTPException(404)
        return Response(content, media_type="image/jpeg", headers=HEADERS)

    async def answer(self, request: Request) -> Response:
        """The result for one image: its text, its page and its record."""
        try:
            verb, options = request.url.path[1:], options_of(request)
            number = self.number_of(verb, options)
            file = self._decoders.upload(
                Path(options.get("name", [""])[0]).name or "this image",
                await asyncio.wait_for(content(request), LONGEST),
            )
            key = (number, verb, *(tuple(options.get(name, ())) for name in OPTIONS[verb]))
            model = self.models[number][1]
            async with self._decoded:
                with suppress(ValueError):  # which is raised again when its turn comes
                    await asyncio.wrap_future(self._decoders.submit(decode, model, verb, file))
                result = await self.together(key, file, partial(answers, model, verb, options))
                return await run_in_threadpool(answered, result)
        except HTTPException:
            raise
        except ClientDisconnect:
            return Response()
        except (TimeoutError, asyncio.TimeoutError):  # one and the same from Python 3.11 on
            return failure(408, "the request is shorter than it says, or too slow")
        except ValueError as error:
            return failure(413 if isinstance(error, TooLarge) else 400, printable(str(error)))
        except Exception as error:  # the server goes on
            traceback.print_exc()
            return failure(500, f"this is a bug in vision-attn: {type(error).__name__}")

    async def together(self, key: tuple, file: Encoded, answer: Answer) -> Any:
        """The result for one file. Files with the same key that wait for their turn are answered together."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        group = self._waiting.get(key, [])
        group.append((file, future))
        if len(group) > 1:  # the first of a group waits for all
            if len(group) == BATCH:
                del self._waiting[key]
            return await future
        self._waiting[key] = group
        async with self._free:
            if self._waiting.get(key) is group:
                del self._waiting[key]
            results = await self._worked(answer, [file for file, _ in group])
        for (_, each), result in zip(group, results, strict=True):
            each.set_exception(result) if isinstance(result, Exception) else each.set_result(result)
        return await future

    async def _worked(self, answer: Answer, some: list[Encoded]) -> list[Any]:
        """The results for files, or exceptions. If one file cannot be used, each is tried alone."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, answer, some)
        except Exception as error:
            return [error] if len(some) == 1 else [(await self._worked(answer, [one]))[0] for one in some]

    def number_of(self, verb: str, options: dict[str, list[str]]) -> int:
        """The number of the model that is asked. HTTPException says what to ask instead."""
        number = number_of(options.get("model", ["0"])[0], len(self.models) - 1)
        if number is None:
            raise HTTPException(404, f"there is no such model: their numbers are 0 to {len(self.models) - 1}")
        name, model = self.models[number]
        if verb not in verbs(model):
            able = [f"/{verb}?model={n} ({other})" for n, (other, one) in enumerate(self.models) if verb in verbs(one)]
            instead = [*able, *(f"/{other}" for other in verbs(model))][:1]
            hint = "".join(f": ask {one}" for one in instead)
            raise HTTPException(400, f"{name} does not answer /{verb}{hint}")
        return number


class Protocol(H11Protocol):
    """HTTP, as uvicorn speaks it. Closes a connection over which no request arrives."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(LONGEST, lambda: None if self.cycle else transport.close())


def make_server(
    models: Sequence[tuple[str, Model | Explainer]], *, host: str = "127.0.0.1", port: int = 7860
) -> Server:
    """Return a server of named models; `serve_forever` runs it. Port 0 takes a free one. Raises ValueError if the
    address cannot be used, or a model is none that the page can show."""
    try:
        return Server(models, host, port)
    except OSError as error:
        raise ValueError(f"{host}:{port} cannot be used ({error.strerror or error}): name another --port") from error


def is_foreign(headers: Headers, local: bool) -> bool:
    """Whether a page of another site asks, also of one that has our address under a name of its own."""
    origin, host = headers.get("origin"), headers.get("host", "")
    try:
        theirs = origin is not None and urlsplit(origin).netloc != host
        return theirs or (local and urlsplit(f"//{host}").hostname not in LOCAL)
    except ValueError:  # no address at all
        return True


def options_of(request: Request) -> dict[str, list[str]]:
    """The options in the address. Raises HTTPException for unknown ones."""
    path, options = request.url.path, request.query_params
    known = ("model", "name", *OPTIONS[path[1:]])
    for option in options:
        if option not in known:
            raise HTTPException(400, f"{path} has no option {option!r}: it takes {', '.join(known)}")
    return {option: values for option in options if (values := [*filter(None, options.getlist(option))])}


async def content(request: Request) -> bytes:
    """The body of a request. Raises HTTPException if it is too large."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > LARGEST:
            raise HTTPException(413, f"this file is too large: at most {LARGEST // 10**6} MB")
    return bytes(found)


def answered(result: Any) -> Response:
    return JSONResponse({"text": result.text, "page": result.page()} | result.record(maps=True), headers=HEADERS)


def failure(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status, headers=HEADERS)


async def refusal(request: Request, error: Exception) -> Response:
    """An error of the protocol, or of ours."""
    assert isinstance(error, HTTPException)
    instead = "POST, and send the file of an image" if request.url.path[1:] in OPTIONS else "GET"
    told = {"Not Found": "there is no such page", "Method Not Allowed": f"ask with {instead}"}
    return failure(error.status_code, told.get(error.detail, error.detail))
