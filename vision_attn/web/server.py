"""The server of the web page. It keeps models in memory and takes images from requests; neither is stored or logged.

POST /caption, /look and /classify take an image file as their body, and the number of a model as `?model=`. /look also
takes `text=`, which may be repeated, and `method=`. /caption takes `attend=`, JSON such as {"3": [0.3, -0.2]}, and
`strength=`: see `Model.caption`. /digit takes a picture of 28 x 28 pixels, which it puts among clutter; /glimpses does
the same, and takes the `locations=` that its user chose: see `game`. /answer takes `question=` and, for a model of
stories, a text in place of an image. The answer is JSON: `{"text":, "page":}` with the result's `record`, or
`{"error":}`. GET /photographs lists the photographs that come with the package, and GET /photographs/NAME returns one.
GET /lesson returns the lesson of docs/lesson.
"""

import asyncio
import errno
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vision_attn.data.images.limits import TooLarge
from vision_attn.data.images.open import Encoded
from vision_attn.data.isolated.decoders import Decoders
from vision_attn.results.explainer import Explainer
from vision_attn.results.model import Model
from vision_attn.results.result_list import BATCH
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.system.files import ours
from vision_attn.web import connections
from vision_attn.web.addresses import is_foreign, listening, url_of
from vision_attn.web.answers import OPTIONS, answers, check_served, decode, described, verbs
from vision_attn.web.options import number_of
from vision_attn.web.replies import HEADERS, answered, failure, page_of, refusal

LARGEST = 32_000_000
"""The largest number of bytes of an upload."""
HELD = 16 * LARGEST
"""The largest number of bytes of all uploads that are held at a time."""
TEXTS = 16
"""The largest number of texts of a request to /look: each takes a map."""
PHOTOGRAPHS = "docs/photographs"
"""The folder of photographs that can be clicked on the page."""
LESSON = "docs/lesson/index.html"

Answer = Callable[[list[Encoded]], list[Any]]
Group = list[tuple[Encoded, "asyncio.Future[Any]"]]
"""The files that are answered together, each with its answer."""


class Server:
    """Serve named `models` until `shutdown` or Ctrl-C."""

    def __init__(self, models: Sequence[tuple[str, Model | Explainer]], host: str, port: int) -> None:
        self.models = list[tuple[str, Model | Explainer]]()
        for name, model in models:
            self.add(name, model)
        self.socket = listening(host, port)
        self.server_port: int = self.socket.getsockname()[1]
        self.name, self.url = host, url_of(host, self.server_port)
        # Read now: no request opens a file, so none needs a descriptor, or a name that is looked up.
        self.photographs = {file.name: file.read_bytes() for file in sorted((ours() / PHOTOGRAPHS).glob("*.jpg"))}
        whole = {"/": files("vision_attn.web").joinpath("index.html"), "/lesson": ours() / LESSON}
        own = [file for file in files("vision_attn.web").iterdir() if file.name.endswith((".css", ".js", ".png"))]
        whole |= {f"/{file.name}": file for file in own}
        pages = [Route(path, page_of(file.name, file.read_bytes())) for path, file in whole.items()]
        pages += [Route("/models", self.names), Route("/photographs", self.examples)]
        pages += [Route("/photographs/{name}", self.example)]
        asked = [Route(f"/{verb}", self.answer, methods=["POST"]) for verb in OPTIONS]
        app = Starlette(
            routes=[*pages, *asked], exception_handlers={HTTPException: refusal(OPTIONS), Exception: self.failed}
        )
        self._uvicorn = connections.Listener(self.checked(app), self.stop)
        self._worker = ThreadPoolExecutor(1)  # models answer one after the other, always in the same thread
        self._computing: Future | None = None
        self._free = asyncio.Lock()
        self._decoders = Decoders()
        self._held_as_pixels = asyncio.Semaphore(BATCH)  # uploads that are held as pixels
        self._waiting: dict[tuple, Group] = {}
        self._tasks, self._asked = set[asyncio.Task](), set[asyncio.Task]()
        self._held = 0

    def add(self, name: str, model: Model | Explainer) -> None:
        """Serve one more model. Raises UserError for one that answers nothing that the page can ask."""
        check_served(model)
        self.models.append((name, model))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._uvicorn.started:  # or it has closed it
            self.socket.close()
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._decoders.close()

    def serve_forever(self) -> None:
        self._decoders.start()
        self._uvicorn.run(sockets=[self.socket])

    def shutdown(self) -> None:
        self._uvicorn.should_exit = True

    @property
    def is_computing(self) -> bool:
        return self._computing is not None and self._computing.running()

    def stop(self) -> None:
        """Cancel the waiting requests, which get no answer."""
        for task in self._asked:
            task.cancel()

    def checked(self, app: Starlette) -> Any:
        """Return the application, limited to requests of its own page."""

        async def respond(scope: Any, receive: Any, send: Any) -> None:
            address = (scope.get("server") or ("",))[0]
            refused = scope["type"] == "http" and is_foreign(Headers(scope=scope), address, self.name)
            foreign = f"this request comes from another site, or calls this machine by another name than {self.url}"
            await (failure(403, foreign) if refused else app)(scope, receive, send)

        return respond

    async def names(self, _: Request) -> Response:
        return JSONResponse([{"name": name, **described(model)} for name, model in self.models], headers=HEADERS)

    async def examples(self, _: Request) -> Response:
        return JSONResponse([*self.photographs], headers=HEADERS)

    async def example(self, request: Request) -> Response:
        if (content := self.photographs.get(request.path_params["name"])) is None:
            raise HTTPException(404)
        return Response(content, media_type="image/jpeg", headers=HEADERS)

    async def answer(self, request: Request) -> Response:
        """Answer one image with its text, its page and its record. If the client leaves, nothing is computed."""
        task = asyncio.current_task()
        assert task is not None
        self._asked.add(task)
        request.state.held = 0
        watch = None
        try:
            verb, options = request.scope["path"][1:], options_of(request)
            number = self.number_of(verb, options)
            name = Path(options.get("name", [""])[0]).name or "this image"
            file = self._decoders.upload(name, await asyncio.wait_for(self.content(request), connections.LONGEST))
            watch = asyncio.create_task(until_gone(request, task))
            key = (number, verb, *(tuple(options.get(name, ())) for name in OPTIONS[verb]))
            model = self.models[number][1]
            async with self._held_as_pixels:
                with suppress(UserError):  # which is raised again when its turn comes
                    await asyncio.wrap_future(self._decoders.submit(decode, model, verb, file))
                result = await self.together(key, file, partial(answers, model, verb, options))
                return await run_in_threadpool(answered, result)
        except ClientDisconnect:
            return Response()
        except (TimeoutError, asyncio.TimeoutError):  # one and the same from Python 3.11 on
            return failure(408, "the request is shorter than it says, or too slow")
        except UserError as error:
            return failure(413 if isinstance(error, TooLarge) else 400, printable(str(error)))
        except asyncio.CancelledError:
            return failure(503, "the server has been stopped")
        finally:
            if watch is not None:
                watch.cancel()
            self._held -= request.state.held
            self._asked.discard(task)

    async def content(self, request: Request) -> bytes:
        """Read the body of a request. Raises HTTPException if it, or all held bodies together, are too large."""
        body = bytearray()
        too_large = HTTPException(413, f"this file is too large: at most {LARGEST // 10**6} MB")
        if int(request.headers.get("content-length", 0)) > LARGEST:
            raise too_large
        async for chunk in request.stream():
            body += chunk
            request.state.held += len(chunk)
            self._held += len(chunk)
            if len(body) > LARGEST:
                raise too_large
            if self._held > HELD:
                raise HTTPException(503, "the server is busy with other files: try again later")
        return bytes(body)

    async def failed(self, _: Request, error: Exception) -> Response:
        """Answer a request that hit a bug. The server continues."""
        self._uvicorn.print(error)
        return failure(500, f"this is a bug in vision-attn: {type(error).__name__}")

    async def together(self, key: tuple, file: Encoded, answer: Answer) -> Any:
        """Return the result for one file. Waiting files with the same key are answered together."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if key not in self._waiting:
            group = self._waiting[key] = []
            task = asyncio.create_task(self._answer_group(key, group, answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        group = self._waiting[key]
        group.append((file, future))
        if len(group) == BATCH:
            del self._waiting[key]
        try:
            return await future
        finally:
            group[:] = [waiting for waiting in group if not waiting[1].cancelled()]

    async def _answer_group(self, key: tuple, group: Group, answer: Answer) -> None:
        """Answer a group once the model is free, without the files whose clients have left."""
        async with self._free:
            if self._waiting.get(key) is group:
                del self._waiting[key]
            asked = list(group)
            results = await self._compute(answer, [file for file, _ in asked]) if asked else []
        for (_, future), result in zip(asked, results, strict=True):
            if not future.done():
                future.set_exception(result) if isinstance(result, Exception) else future.set_result(result)

    async def _compute(self, answer: Answer, some: list[Encoded]) -> list[Any]:
        """Return the results for files, or exceptions. If one file cannot be used, each is tried alone."""
        try:
            self._computing = self._worker.submit(answer, some)
            return await asyncio.wrap_future(self._computing)
        except Exception as error:
            return [error] if len(some) == 1 else [(await self._compute(answer, [item]))[0] for item in some]

    def number_of(self, verb: str, options: dict[str, list[str]]) -> int:
        """Return the number of the model that is asked. Raises HTTPException, which says what to ask instead."""
        number = number_of(options.get("model", ["0"])[0], len(self.models) - 1)
        if number is None:
            raise HTTPException(404, f"there is no such model: their numbers are 0 to {len(self.models) - 1}")
        name, model = self.models[number]
        if verb not in verbs(model):
            able = [
                f"/{verb}?model={n} ({other})" for n, (other, model) in enumerate(self.models) if verb in verbs(model)
            ]
            instead = [*able, *(f"/{other}" for other in verbs(model))][:1]
            hint = "".join(f": ask {path}" for path in instead)
            raise HTTPException(400, f"{name} does not answer /{verb}{hint}")
        return number


def make_server(
    models: Sequence[tuple[str, Model | Explainer]], *, host: str = "127.0.0.1", port: int = 7860
) -> Server:
    """Return a server of named models; `serve_forever` runs it. Port 0 takes a free one. Raises UserError if the
    address cannot be used, or if the page cannot show a model."""
    try:
        return Server(models, host, port)
    except (OSError, UnicodeError) as error:  # a name that no network could have
        option = "--port" if getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES) else "--host"
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{host}:{port} cannot be used ({reason}): name another {option}") from error


async def until_gone(request: Request, task: asyncio.Task) -> None:
    """Cancel `task` when the client of its request leaves. The request must have arrived completely."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    task.cancel()


def options_of(request: Request) -> dict[str, list[str]]:
    """Return the options in the address. Raises HTTPException for unknown ones."""
    path, options = request.scope["path"], request.query_params  # .url is made of the header Host
    known = ("model", "name", *OPTIONS[path[1:]])
    for option in options:
        if option not in known:
            raise HTTPException(400, f"{path} has no option {option!r}: it takes {', '.join(known)}")
    if len(options.getlist("text")) > TEXTS:
        raise HTTPException(400, f"a request may hold {TEXTS} texts at most")
    return {option: values for option in options if (values := [*filter(None, options.getlist(option))])}
