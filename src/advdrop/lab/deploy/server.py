"""A small server for one model: a page to drop an image on, and ``POST /predict`` for programs.

It reads no file and keeps no state: an image comes in with a request, and the probabilities go out. Uploads are limited
in bytes, pixels, time and number.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from advdrop.lab.data.examples import DataError
from advdrop.lab.data.pictures import FORMATS, opened, pixels
from advdrop.lab.engine.model import Model

MEGABYTE = 10**6


@dataclass(frozen=True)
class Limits:
    """What a request may cost."""

    megabytes: float = 10.0  # of an upload
    seconds: float = 30.0  # to send it in
    requests: int = 16  # that are read or wait at the same time; one is computed at a time

    @property
    def bytes(self) -> int:
        """Of an upload."""
        return int(self.megabytes * MEGABYTE)


def app_of(model: Model, name: str, host: str = "127.0.0.1", limits: Limits | None = None) -> FastAPI:
    """Return the application that serves a model.

    Args:
        model: of images.
        name: what the page calls it.
        host: the name or address that the server is reached by.
        limits: of a request.
    """
    limits = limits or Limits()
    app = FastAPI(title=f"advdrop: {name}", docs_url=None, redoc_url=None, openapi_url=None)
    page, policy = page_of(model, name, limits)
    one_at_a_time = asyncio.Lock()
    slots = Slots(limits.requests)

    @app.middleware("http")
    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if allowed_host(request.headers.get("host", ""), host):
            response = await answer(request)
        else:
            response = JSONResponse({"error": "This host name is not that of the server; see --host."}, 421)
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response

    @app.exception_handler(StarletteHTTPException)
    async def explain(request: Request, error: StarletteHTTPException) -> JSONResponse:
        del request
        # The rest of an upload that was cut off is not read.
        return JSONResponse({"error": error.detail}, error.status_code, {"Connection": "close"})

    @app.get("/")
    async def index() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "model": name, "classes": model.classes, "shape": model.shape}

    @app.post("/predict")
    async def predict(request: Request) -> dict[str, Any]:
        async with slots.taken():
            content = await uploaded(request, limits)
            async with one_at_a_time:
                return await run_in_threadpool(classify, model, content)

    return app


class Slots:
    """Counts the requests that are being answered, and refuses more than ``most`` of them."""

    def __init__(self, most: int) -> None:
        self.most, self.now = most, 0

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Take a slot, or refuse at once."""
        if self.now >= self.most:
            raise HTTPException(503, "The server is busy; try again in a moment.")
        self.now += 1
        try:
            yield
        finally:
            self.now -= 1


async def uploaded(request: Request, limits: Limits) -> bytes:
    """Return the image of a request: the field ``image`` of a form, or the whole body."""
    try:
        async with asyncio.timeout(limits.seconds):
            body = await _body(request, limits)
    except TimeoutError:
        raise HTTPException(408, f"The image did not arrive within {limits.seconds:g} seconds.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The image did not arrive.") from None  # nobody reads this
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return body

    async def again() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async with Request(request.scope, again).form(max_files=1, max_fields=8) as form:
        image = form.get("image")
        if not isinstance(image, UploadFile):
            raise HTTPException(400, "The form has no file in a field called image.")
        return await image.read()


async def _body(request: Request, limits: Limits) -> bytes:
    """Read the body of a request, and stop as soon as it is too large."""
    too_large = HTTPException(413, f"The image has more than {limits.megabytes:g} MB.")
    length = request.headers.get("content-length", "0")
    if not re.fullmatch("[0-9]{1,18}", length) or int(length) > limits.bytes:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limits.bytes:
            raise too_large
    return bytes(body)


def classify(model: Model, content: bytes) -> dict[str, Any]:
    """Return the classes of an image, the most probable first."""
    if not content:
        raise HTTPException(400, "There is no image in the request.")
    channels, height, width = model.shape
    try:
        with opened(io.BytesIO(content)) as image:
            x = pixels(image, (channels, height, width))
    except DataError as error:
        bombs = (Image.DecompressionBombError, Image.DecompressionBombWarning)
        if isinstance(error.__cause__, bombs):
            most = Image.MAX_IMAGE_PIXELS or 0
            raise HTTPException(413, f"The image has too many pixels; it may have {most / 1e6:.0f} million.") from None
        kinds = ", ".join(FORMATS)
        raise HTTPException(400, f"This is not an image that can be read; use one of {kinds}.") from None
    row = model.predict_proba(x[None])[0]
    order = np.argsort(-row, kind="stable")
    classes = [{"class": model.classes[number], "probability": float(row[number])} for number in order]
    return {**classes[0], "classes": classes}


def allowed_host(header: str, host: str) -> bool:
    """Return True if a ``Host`` header names this server: an address, localhost, or the name that was given.

    Any other name may be that of a web page whose name was made to point to this machine, so that it can read answers.

    >>> [allowed_host(name, "lab.local") for name in ("localhost:8000", "[::1]:80", "lab.local", "evil.example", "")]
    [True, True, True, False, False]
    """
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(:\d+)?", header.strip().lower())
    name = found[1].strip("[]") if found else ""
    try:
        return bool(ip_address(name))
    except ValueError:
        return name in ("localhost", host.lower()) and name != ""


def page_of(model: Model, name: str, limits: Limits) -> tuple[str, str]:
    """Return the page, and a policy that lets it load and run nothing but itself."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    channels, height, width = model.shape
    about = f"{len(model.classes)} classes, {width} × {height} pixels, {'gray' if channels == 1 else 'color'}"
    values = {"name": name, "about": about, "megabytes": f"{limits.megabytes:g}", "most": limits.bytes}
    page = Environment(autoescape=True).from_string(template).render(values)

    def digest(tag: str) -> str:
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inside)
        return " ".join(f"'sha256-{each}'" for each in hashes)

    policy = {
        "default-src": "'none'",
        "script-src": digest("script"),
        "style-src": digest("style"),
        "img-src": "blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page, "; ".join(f"{key} {value}" for key, value in policy.items())
