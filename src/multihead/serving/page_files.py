"""The files of the web pages, read once and looked up by name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_CONTENT_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page."""

    content: bytes
    content_type: str

    def response(self, request: Request) -> Response:
        """The file, or 304 if the browser has this version."""
        tag = f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.content_type)


def load_page_files() -> dict[str, PageFile]:
    """The files in ``page/`` by name. They are read once and looked up by name, so no path leads elsewhere."""
    folder = resources.files("multihead.serving") / "page"
    if not folder.is_dir():
        return {}
    files = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        content_type = _CONTENT_TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_file() and content_type is not None:
            files[entry.name] = PageFile(entry.read_bytes(), content_type)
    return files
