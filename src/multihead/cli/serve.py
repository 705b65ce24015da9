"""``multihead serve``: models behind HTTP, with a web page.

`multihead.serving` has the server; this command checks flags and sets up the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import click

from multihead.cli.options import check_positive, check_search, flags_of
from multihead.configuration import build
from multihead.errors import ConfigurationError, MissingDependencyError
from multihead.serving.settings import ServeSettings

TOKEN_VARIABLE = "MULTIHEAD_TOKEN"
"""Environment variable that can hold the token."""

VARIABLES = "MULTIHEAD_SERVE"
"""Prefix of the environment variables that set options."""

_SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread must release the GIL: the longest wait of the event loop for a search thread."""


@click.command(context_settings={"auto_envvar_prefix": VARIABLES})
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", envvar=f"{VARIABLES}_MODELS")
@flags_of(ServeSettings)
@click.option("--beam", type=int, metavar="NUMBER", help="Default beam size of a request. [the model's own]")
@click.option("--alpha", type=float, metavar="NUMBER", help="Default length penalty of a request. [the model's own]")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="Of the matrix products; bfloat16 and int8 are faster and round.",
)
@click.option("--threads", type=int, metavar="NUMBER", help="Processor threads. [every core]")
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to compute."
)
@click.pass_context
def serve(
    context: click.Context,
    /,
    models: tuple[str, ...],
    beam: int | None,
    alpha: float | None,
    precision: Literal["float32", "bfloat16", "int8"],
    threads: int | None,
    device: str,
    **flags: Any,
) -> int:
    """Serve MODEL (a run or model folder) over HTTP, with a web page to try it.

    Several models are given with their languages, as de-en=FOLDER en-de=FOLDER, and loaded with the first request for
    them. A language whose code has a hyphen is set off by a colon: pt-BR:en=FOLDER.

    SIGTERM finishes requests in flight and ends the server; SIGHUP reloads the models while serving.

    Every option can also be set in the environment, as in MULTIHEAD_SERVE_PORT=8000; MULTIHEAD_SERVE_MODELS holds the
    models, and values of repeated options, with blanks between them. The command line takes precedence.
    """
    from multihead.cli.process import collect_and_freeze, configure_process

    given = {name: value for name, value in flags.items() if value is not None}
    settings = build(ServeSettings, given, _origin(context))
    check_search(beam, alpha)
    if beam is not None and beam > settings.max_beam:
        raise ConfigurationError(f"--beam {beam} is above --max-beam {settings.max_beam}: change one of them")
    check_positive(threads=threads)
    folders = parse_models(models)
    token = _read_token(settings)
    _check_packages()
    configure_process()
    import torch

    from multihead.serving import server
    from multihead.serving.folders import find_models
    from multihead.serving.scheduler import Scheduler

    options = {"beam": beam, "alpha": alpha, "precision": precision}
    search = {name: value for name, value in options.items() if value is not None}
    sources = find_models(folders, search, device, settings)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    _allow_files()
    if threads is not None:
        torch.set_num_threads(threads)
    search_threads = torch.get_num_threads()

    def make_scheduler() -> Scheduler:
        return Scheduler(settings, sources, search_threads, _say, collect_and_freeze)

    with server.bind(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]
        _say(f"listening at http://{f'[{host}]' if ':' in host else host}:{port}/")
        if token is None and not ip_address(host).is_loopback:
            _say("warning: others on the network can use this server, and no token is asked for: see --token-file")
        scheduler = asyncio.run(server.serve(make_scheduler, listening, token))
    if scheduler.load_error is not None:
        raise scheduler.load_error
    if scheduler.abandoned:
        os._exit(0)  # the thread that loads a model cannot be ended
    return 0


for _option in serve.params:
    if isinstance(_option, click.Option):
        _option.show_envvar = True


def _origin(context: click.Context) -> str:
    """Where the settings come from, for error messages."""
    sources = {context.get_parameter_source(name) for name in context.params}
    environment = click.core.ParameterSource.ENVIRONMENT in sources
    return f"the command line and {VARIABLES}_..." if environment else "the command line"


def parse_models(given: Sequence[str]) -> dict[tuple[str, str] | None, Path]:
    """The folders of the models by source and target language; a single folder may have none.

    Raises:
        ConfigurationError: not SOURCE-TARGET=FOLDER, or a pair given twice.
    """
    folders: dict[tuple[str, str] | None, Path] = {}
    for text in given:
        # A folder that exists may have any name.
        pair, equals, folder = ("", "", text) if Path(text).exists() else text.partition("=")
        if not equals and len(given) > 1:
            raise ConfigurationError(f"{text}: of several models, each needs its languages, as in de-en={text}")
        if not equals:
            return {None: Path(text)}
        languages = tuple(pair.split(":" if ":" in pair else "-"))
        if len(languages) != 2 or not all(languages) or not folder:
            raise ConfigurationError(
                f"{text}: expected SOURCE-TARGET=FOLDER, as in de-en=run; set off a code with a hyphen by a colon, as "
                "in pt-BR:en=run"
            )
        if languages in folders:
            raise ConfigurationError(f"{text}: these languages have a model already: {folders[languages]}")
        folders[languages[0], languages[1]] = Path(folder)
    return folders


def _allow_files() -> None:
    """Allow this process as many open files as its user may have: each connection is one."""
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != most:
        with contextlib.suppress(ValueError, OSError):  # some systems have a lower limit of their own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _say(line: str) -> None:
    click.echo(line, err=True)


def _read_token(settings: ServeSettings) -> str | None:
    """The token required of clients; None if there is none.

    Raises:
        ConfigurationError: the file cannot be read, or the token is empty or has other characters.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    origin = TOKEN_VARIABLE
    if settings.token_file is not None:
        origin = settings.token_file
        try:
            token = Path(settings.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigurationError(f"--token-file {settings.token_file}: cannot be read: {reason}") from None
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigurationError(f"{origin}: expected a token of printable ASCII characters without blanks")
    return token


def _check_packages() -> None:
    """Check the packages of the extra 'serve' before a model is loaded."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(error.name or "fastapi", "serve", "serving") from None
