"""``multihead serve``: a model behind HTTP, with a page; what is served and how is `multihead.serving`'s."""

from __future__ import annotations

import asyncio
import os
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import click

from multihead.cli.options import check_counts, check_search, flags_of
from multihead.configuration import build
from multihead.errors import ConfigurationError, MissingDependencyError
from multihead.serving.settings import ServeSettings

VARIABLE = "MULTIHEAD_TOKEN"
"""The environment variable that can hold the token."""

_SWITCH = 0.0005
"""Seconds after which Python's threads may take turns: the search hands over and goes on, the others wait meanwhile."""


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@flags_of(ServeSettings)
@click.option("--beam", type=int, metavar="NUMBER", help="Where a request does not say. [the model's own]")
@click.option("--alpha", type=float, metavar="NUMBER", help="Where a request does not say. [the model's own]")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="Of the matrix products; the last two are faster, and round.",
)
@click.option("--threads", type=int, metavar="NUMBER", help="Processor threads. [every core]")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to compute."
)
def serve(
    model: Path,
    beam: int | None,
    alpha: float | None,
    precision: str,
    threads: int | None,
    device: str,
    **flags: Any,
) -> int:
    """Serve MODEL (a run or model folder) over HTTP, and a page to try it.

    SIGTERM ends what is in hand and then the server; SIGHUP loads the model anew while it serves.
    """
    from multihead.cli.process import leave_alone_what_stays, own_the_process

    settings = build(
        ServeSettings, {name: value for name, value in flags.items() if value is not None}, "the command line"
    )
    check_search(beam, alpha)
    if beam is not None and beam > settings.max_beam:
        raise ConfigurationError(f"--beam {beam} is above --max-beam {settings.max_beam}: change one of them")
    check_counts(threads=threads)
    token = _token(settings)
    _check_packages()
    own_the_process()
    import torch

    from multihead.model_folder import locate
    from multihead.serving.loaded_model import load
    from multihead.serving.scheduler import Desk
    from multihead.serving.server import bind
    from multihead.serving.server import serve as serve_it

    locate(model)
    sys.setswitchinterval(_SWITCH)
    if threads is not None:
        torch.set_num_threads(threads)
    lanes = torch.get_num_threads()
    wishes = {"beam": beam, "alpha": alpha, "precision": precision}
    search = {name: value for name, value in wishes.items() if value is not None}

    def say(line: str) -> None:
        click.echo(line, err=True)

    with bind(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]
        say(f"listening at http://{f'[{host}]' if ':' in host else host}:{port}/")
        if token is None and not ip_address(host).is_loopback:
            say("warning: others on the network can use this server, and no token is asked for: see --token-file")
        desk = asyncio.run(
            serve_it(
                lambda: Desk(settings, lambda: load(model, search, device), lanes, say, leave_alone_what_stays),
                listening,
                token,
            )
        )
    if desk.failed is not None:
        raise desk.failed
    return 0


def _token(settings: ServeSettings) -> str | None:
    """What clients must show.

    Raises:
        ConfigurationError: the file cannot be read, or the token is empty or no word.
    """
    token = os.environ.get(VARIABLE)
    origin = VARIABLE
    if settings.token_file is not None:
        origin = settings.token_file
        try:
            token = Path(settings.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigurationError(f"--token-file {settings.token_file}: cannot be read: {what}") from None
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigurationError(f"{origin}: expected a token of printable ASCII characters without blanks")
    return token


def _check_packages() -> None:
    """Says what to install, before a model is loaded for nothing."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(error.name or "fastapi", "serve", "serving") from None
