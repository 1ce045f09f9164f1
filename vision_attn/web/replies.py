"""Make the replies of the page's server: its own files, and reasons why there is no result."""

from collections.abc import Awaitable, Callable, Container
from mimetypes import guess_type
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vision_attn.web.game import Played

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def page_of(name: str, content: bytes) -> Callable[[Request], Awaitable[Response]]:
    """Return a function that answers requests for a file of this name."""
    media_type = {"js": "text/javascript"}.get(name.rsplit(".", 1)[-1]) or guess_type(name)[0]

    async def page(_: Request) -> Response:
        return Response(content, media_type=media_type, headers=HEADERS)

    return page


def answered(result: Any) -> Response:
    if isinstance(result, Played):
        return JSONResponse(result.record(), headers=HEADERS)
    return JSONResponse({"text": result.text, "page": result.page()} | result.record(maps=True), headers=HEADERS)


def failure(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status, headers=HEADERS)


def refusal(verbs: Container[str]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return a function that answers an error of the protocol, or of ours. verbs: the paths that take a POST."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        instead = "POST, and send the file of an image" if request.scope["path"][1:] in verbs else "GET"
        told = {"Not Found": "there is no such page", "Method Not Allowed": f"ask with {instead}"}
        return failure(error.status_code, told.get(error.detail, error.detail))

    return refused
