"""The page's files, read once: what is not among them does not exist, so no path can lead elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}


@dataclass(frozen=True)
class PageFile:
    """A file as it is sent."""

    content: bytes
    kind: str

    def response(self, request: Request) -> Response:
        """Nothing where the browser has it already."""
        tag = f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.kind)


def page_files() -> dict[str, PageFile]:
    """Those of ``page/``, by name; other kinds of files are not part of it."""
    folder = resources.files("multihead.serving") / "page"
    if not folder.is_dir():
        return {}
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        kind = _KINDS.get(entry.name.rpartition(".")[2])
        if entry.is_file() and kind is not None:
            found[entry.name] = PageFile(entry.read_bytes(), kind)
    return found
