"""Cleaned files at URLs: made here, then uploaded, the kept pairs last

They are made in the folder `shards.publishing.place_of` the first URL. It holds the verdicts until everything is
uploaded, so the same command goes on with them, and uploads what is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from multihead.files import remove, write_errors
from multihead.shards.publishing import MARKER, check_places, place_of, publish
from multihead.urls import url_of
from multihead.work_folder import locked

Watch = Callable[[str, int], AbstractContextManager[Any]]
"""Begins a stage, as in `clean.clean`."""


@contextmanager
def made_here(
    outputs: Mapping[str, Path], begun: Callable[[dict[str, Path]], bool]
) -> Iterator[tuple[dict[str, Path], Callable[[Watch], None]]]:
    """The files to write on this machine instead of those at URLs, and a function that uploads them.

    The body calls that function when the files are complete, and before it removes what it goes on with.

    Args:
        outputs: what is written, with a URL at least, in the order in which it appears.
        begun: whether files on this machine are those of work that goes on.

    Raises:
        ConfigurationError: a file exists, or another process makes it; nothing was replaced.
        SurroundingsError: the store cannot be reached or written.
    """
    named = {name: url_of(path) for name, path in outputs.items()}
    urls = {name: url for name, url in named.items() if url is not None}
    *_, first = urls.values()
    marker, place = f"{first}.{MARKER}", place_of(first)
    with locked(place):
        check_places(urls.values(), marker)
        here = {name: place / name / url.rpartition("/")[2] for name, url in urls.items()}
        files = {url: here[name] for name, url in urls.items()}
        with write_errors(place):
            if not begun(here):  # what is there was uploaded, but not removed
                for path in list(place.iterdir()):
                    remove(path)
            for path in here.values():
                path.parent.mkdir(parents=True, exist_ok=True)

        def upload(watch: Watch) -> None:
            with watch("uploaded", sum(path.stat().st_size for path in files.values())) as count:
                publish(files, marker, count)

        try:
            yield here, upload
            shutil.rmtree(place, ignore_errors=True)
        finally:
            for path in here.values():
                with suppress(OSError):
                    path.parent.rmdir()
