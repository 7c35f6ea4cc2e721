"""Serve the viewer's page, Neuroglancer and one results folder on 127.0.0.1.

Neuroglancer's page comes from its Python package. It expects a server that keeps a stream of
events open and configures the page over it (its ``python_integration/api.ts``).
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tilewright.config.layout import Layout
from tilewright.viewer.scene import ViewError, build_scene, image_of

_PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
}
#: The page asks nobody but this server; Neuroglancer's workers load their codecs by eval.
_POLICY = (
    "default-src 'self' blob: data:; script-src 'self' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'"
)
#: Neuroglancer's configuration: its controls are hidden, the page has its own; the wheel zooms, and
#: what belongs to other kinds of data does nothing.
_CONFIG = _PAGE / "neuroglancer.json"
_HEARTBEAT_S = 10.0


def neuroglancer_client() -> Path:
    """Return the folder of Neuroglancer's page in its installed package.

    Raises
    ------
    ViewError
        The package is not installed, or was built without the page.
    """
    found = find_spec("neuroglancer")
    if found is None or found.origin is None:
        raise ViewError("the viewer needs Neuroglancer: pip install 'tilewright[view]'")
    client = Path(found.origin).parent / "static" / "client"
    if not (client / "index.html").is_file():
        raise ViewError(
            f"{client} holds no index.html: pip install --force-reinstall 'tilewright[view]'"
        )
    return client


class ViewerServer(ThreadingHTTPServer):
    """Serve one results folder to those who know its address.

    The address holds a random token, because every user of a machine may connect to 127.0.0.1.

    Parameters
    ----------
    results : Path
        The results folder.
    samples : sequence of str
        Samples to choose from, the first one shown first.
    port : int
        0 takes a free one.

    Raises
    ------
    ViewError
        Neuroglancer is not installed, or the port cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, results: Path, samples: Sequence[str], port: int = 0) -> None:
        self.results = results.resolve()
        self.samples = list(samples)
        self.client = neuroglancer_client()
        self.token = secrets.token_urlsafe(16)
        self.opening: str | None = secrets.token_urlsafe(16)
        self.stopping = threading.Event()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ViewError(
                f"port {port} of 127.0.0.1: {error.strerror}; give another --port, or 0 for any"
            ) from error

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"

    @property
    def opening_url(self) -> str:
        """An address that leads there once, for the browser's arguments, which all users see."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.opening}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of browsers that leave before an answer is complete."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def server_close(self) -> None:
        """End the streams too."""
        self.stopping.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for a fixed set of addresses below the token."""

    protocol_version = "HTTP/1.1"
    server: ViewerServer
    #: Of a request that is not sent to its end, s.
    timeout = 30

    def do_GET(self) -> None:
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            return self._refuse(HTTPStatus.BAD_REQUEST)
        if host not in ("127.0.0.1", "localhost"):
            # Another name for this address is a page elsewhere that reaches for local servers.
            return self._refuse(HTTPStatus.FORBIDDEN)
        path = unquote(urlsplit(self.path).path)
        token, _, rest = path.removeprefix("/").partition("/")
        if self.server.opening and secrets.compare_digest(
            token.encode(), self.server.opening.encode()
        ):
            self.server.opening = None
            return self._redirect(f"/{self.server.token}/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            return self._refuse(HTTPStatus.NOT_FOUND)
        if rest == "events/image":
            return self._stream()
        self._answer(rest)

    def _answer(self, rest: str) -> None:
        kind, _, name = rest.partition("/")
        if rest == "":
            self._send_file(_PAGE / "index.html")
        elif rest == "start.json":
            samples = self.server.samples
            about = {"samples": samples, "report": self._report().is_file()}
            self._send_json({**about, "first": self._scene(samples[0])})
        elif rest == "report.html":
            self._send_inside(self._report())
        elif kind == "page" and name in ("viewer.js", "viewer.css"):
            self._send_file(_PAGE / name)
        elif rest == "v/image/":
            self._send_file(self.server.client / "index.html")
        elif rest.startswith("v/image/") and re.fullmatch(r"\w[\w.-]*", rest[8:], re.ASCII):
            # The workers load the same files; their names change with their content.
            self._send_file(self.server.client / rest[8:], "max-age=86400, immutable")
        elif kind == "scenes" and name in self.server.samples:
            self._send_json(self._scene(name))
        elif kind == "image":
            sample, _, within = name.partition("/")
            if sample not in self.server.samples:
                return self._refuse(HTTPStatus.NOT_FOUND)
            self._send_inside(image_of(self.server.results, sample) / within.lstrip("/"))
        else:
            self._refuse(HTTPStatus.NOT_FOUND)

    def _report(self) -> Path:
        return self.server.results / Layout(".").report

    def _scene(self, sample: str) -> dict[str, object]:
        try:
            return asdict(build_scene(self.server.results, sample))
        except ViewError as error:
            return {"error": str(error)}

    def _send_inside(self, path: Path) -> None:
        """Send a file of the results folder; links may not lead out of it."""
        try:
            resolved = path.resolve()
        except (OSError, RuntimeError, ValueError):  # links in a circle, characters no name has
            return self._refuse(HTTPStatus.NOT_FOUND)
        if ".." in path.parts or not resolved.is_relative_to(self.server.results):
            return self._refuse(HTTPStatus.FORBIDDEN)
        self._send_file(resolved)

    def _send_file(self, path: Path, caching: str = "no-store") -> None:
        try:
            content = path.read_bytes()
        except OSError:
            return self._refuse(HTTPStatus.NOT_FOUND)
        kind = _TYPES.get(path.suffix, "application/octet-stream")
        self._send(content, kind, caching=caching)

    def _send_json(self, value: object) -> None:
        self._send(json.dumps(value).encode(), _TYPES[".json"])

    def _send(
        self,
        content: bytes,
        content_type: str,
        status: HTTPStatus = HTTPStatus.OK,
        caching: str = "no-store",
    ) -> None:
        self._begin(status, content_type, caching)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _begin(self, status: HTTPStatus, content_type: str, caching: str = "no-store") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Cache-Control", caching)
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")

    def _redirect(self, path: str) -> None:
        self._begin(HTTPStatus.SEE_OTHER, "text/plain")
        self.send_header("Location", path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _refuse(self, status: HTTPStatus) -> None:
        self._send(f"{status.value} {status.phrase}\n".encode(), "text/plain", status)

    def _stream(self) -> None:
        """Configure Neuroglancer, and keep the stream open until one of both ends."""
        config = json.loads(_CONFIG.read_text(encoding="utf-8"))
        message = json.dumps({"k": "c", "g": "1", "s": config})
        self._begin(HTTPStatus.OK, "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.wfile.write(f"data: {message}\n\n".encode())
            while not self.server.stopping.wait(_HEARTBEAT_S):
                self.wfile.write(b":\n\n")
        except OSError:
            return  # the browser has left

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of single requests."""
