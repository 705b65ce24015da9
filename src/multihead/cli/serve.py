"""``multihead serve``: models behind HTTP, with a web page.

`multihead.serving` has the server; this command checks flags and sets up the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from multihead.cli.choosing import parse_weights
from multihead.cli.help import tell
from multihead.cli.options import Command, check_positive, check_search, complete_as, flags_of, require_flag
from multihead.configuration import build
from multihead.decoding.search import Mean
from multihead.errors import ConfigurationError, require_package
from multihead.platforms import DEVICES, raise_open_file_limit
from multihead.serving.settings import ServeSettings
from multihead.translating.request import USUAL

if TYPE_CHECKING:
    from multihead.serving.folders import Team

TOKEN_VARIABLE = "MULTIHEAD_TOKEN"
"""Environment variable that can hold the token."""

VARIABLES = "MULTIHEAD_SERVE"
"""Prefix of the environment variables that set options."""

_SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread must release the GIL: the longest wait of the event loop for a search thread."""


def _describe_default(name: str) -> str:
    default = ServeSettings.model_fields[name].default
    return "" if default is None else f"[{default}]"


@click.command(
    cls=Command,
    examples=(
        "multihead serve run",
        "multihead serve run --uses",
        "multihead serve de-en=run en-de=back --port 8080",
        "multihead serve run --host 0.0.0.0 --token-file token.txt",
    ),
    context_settings={"auto_envvar_prefix": VARIABLES},
)
@click.argument(
    "models",
    nargs=-1,
    required=True,
    metavar="MODEL...",
    envvar=f"{VARIABLES}_MODELS",
    shell_complete=complete_as("dir"),
)
@flags_of(ServeSettings, _describe_default)
@click.option("--beam", type=int, metavar="NUMBER", help="Default beam size of a request. [the model's own]")
@click.option("--alpha", type=float, metavar="NUMBER", help="Default length penalty of a request. [the model's own]")
@click.option(
    "--precision",
    type=click.Choice(["float32", "bfloat16", "int8"]),
    help="Precision of the matrix products; bfloat16 and int8 are faster and round. [float32, or that of the use]",
)
@click.option("--threads", type=int, metavar="NUMBER", help="Processor threads. [every core]")
@click.option("--device", type=click.Choice(DEVICES), default="cpu", show_default=True, help="Where to compute.")
@click.option(
    "--with",
    "others",
    multiple=True,
    metavar="FOLDER",
    envvar=f"{VARIABLES}_WITH",
    shell_complete=complete_as("dir"),
    help="Another model with the same vocabulary; their predictions are averaged. May be repeated.",
)
@click.option("--mean", type=click.Choice(get_args(Mean)), help="What is averaged, with --with. [probabilities]")
@click.option(
    "--reverse",
    multiple=True,
    metavar="FOLDER",
    shell_complete=complete_as("dir"),
    help="A model of the opposite direction: choose among the translations in the beam also by the probability of the "
    "source given the translation. May be repeated.",
)
@click.option(
    "--judge",
    multiple=True,
    metavar="FOLDER",
    shell_complete=complete_as("dir"),
    help="Another model of the same direction, preferably from `train --right-to-left`: choose among the translations "
    "in the beam also by its probability of each. May be repeated.",
)
@click.option(
    "--draft",
    metavar="FOLDER",
    shell_complete=complete_as("dir"),
    help="For greedy searches (--beam 1): a much smaller model with the same vocabulary, whose guesses MODEL checks. "
    "The translations are the same, and come sooner if MODEL is large.",
)
@click.option(
    "--datastore",
    metavar="FOLDER",
    shell_complete=complete_as("dir"),
    help="A datastore of MODEL, made by `multihead datastore`: slower and often better.",
)
@click.option(
    "--weights",
    metavar="TEXT",
    help="Choose among the translations in the beam by these weights of forward, reverse, judge, agreement and "
    f"length, as multihead tune prints them. [{USUAL}, of the models that are given]",
)
@click.option(
    "--uses",
    is_flag=True,
    help="MODEL is a run of `multihead train --best`: offer every way to use its models, by name.",
)
@click.pass_context
def serve(
    context: click.Context,
    /,
    models: tuple[str, ...],
    beam: int | None,
    alpha: float | None,
    precision: Literal["float32", "bfloat16", "int8"] | None,
    threads: int | None,
    device: str,
    others: tuple[str, ...],
    mean: Mean | None,
    reverse: tuple[str, ...],
    judge: tuple[str, ...],
    draft: str | None,
    datastore: str | None,
    weights: str | None,
    uses: bool,
    **flags: Any,
) -> int:
    """Serve MODEL (a run or model folder) over HTTP, with a web page to try it.

    Name several models with their languages, as in de-en=FOLDER en-de=FOLDER; each is loaded by the first request for
    it. If the code of a language has a hyphen, write a colon between the languages: pt-BR:en=FOLDER. A further model of
    the same languages needs a name: de-en@large=FOLDER.

    SIGTERM finishes requests in flight and ends the server; SIGHUP reloads the models while serving.

    Every option can also be set by an environment variable, as in MULTIHEAD_SERVE_PORT=8000; MULTIHEAD_SERVE_MODELS
    holds the models. Put spaces between several models, and between the values of an option that may be repeated. The
    command line takes precedence.
    """
    from multihead.cli.process import collect_and_freeze, configure_process

    given = {name: value for name, value in flags.items() if value is not None}
    settings = build(ServeSettings, given, _origin(context))
    check_search(beam, alpha)
    if beam is not None and beam > settings.max_beam:
        raise ConfigurationError(f"--beam {beam} is above --max-beam {settings.max_beam}: change one of them")
    check_positive(threads=threads)
    folders = parse_models(models)
    team = TeamFlags(others, mean, reverse, judge, draft, datastore, weights, uses)
    team.check(folders)
    token = _read_token(settings)
    _check_packages()
    configure_process()
    import torch

    from multihead.serving import server
    from multihead.serving.folders import find_models
    from multihead.serving.scheduler import Scheduler

    options = {"beam": beam, "alpha": alpha, "precision": precision}
    search = {name: value for name, value in options.items() if value is not None}
    sources = find_models(folders, search, device, settings, team.teams(folders))
    sys.setswitchinterval(_SWITCH_INTERVAL)
    raise_open_file_limit()  # each connection is one
    if threads is not None:
        torch.set_num_threads(threads)
    search_threads = torch.get_num_threads()

    def make_scheduler() -> Scheduler:
        return Scheduler(settings, sources, search_threads, tell, collect_and_freeze)

    with server.bind(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]
        tell(f"listening at http://{f'[{host}]' if ':' in host else host}:{port}/")
        if hint := team.hint(folders):
            tell(hint)
        if token is None and not ip_address(host).is_loopback:
            tell("warning: anyone on the network can use this server without a token; set one with --token-file")
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


@dataclass(frozen=True)
class TeamFlags:
    """The flags of models that translate together."""

    others: tuple[str, ...] = ()
    mean: Mean | None = None
    reverse: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()
    draft: str | None = None
    datastore: str | None = None
    weights: str | None = None
    uses: bool = False

    def check(self, folders: Mapping[tuple[str, ...] | None, Path]) -> None:
        """Check what can be checked before a model is read.

        Raises:
            ConfigurationError: flags that exclude or need each other.
        """
        given = {
            "--with": self.others,
            "--mean": self.mean,
            "--reverse": self.reverse,
            "--judge": self.judge,
            "--draft": self.draft,
            "--datastore": self.datastore,
            "--weights": self.weights,
        }
        names = [name for name, value in given.items() if value]
        if (names or self.uses) and len(folders) > 1:
            raise ConfigurationError(f"{(names or ['--uses'])[0]} is for a single MODEL, got {len(folders)}")
        if self.uses and names:
            raise ConfigurationError(f"--uses sets {names[0]} as the run says: leave out one of them")
        require_flag("--with", bool(self.others), ["mean"] if self.mean else [])
        if self.draft and self.datastore:
            raise ConfigurationError("--draft does not work with a datastore: leave out --draft or --datastore")
        parse_weights(self.weights, self.reverse, self.judge)

    def teams(self, folders: Mapping[tuple[str, ...] | None, Path]) -> tuple[Team, ...]:
        """The ways to use each model.

        Raises:
            ConfigurationError, FormatError: the folder is no finished run in stages, or is damaged.
        """
        from multihead.serving.folders import Team
        from multihead.serving.uses import read_uses

        if self.uses:
            (run,) = folders.values()
            return read_uses(run)
        others, reverse, judge = (tuple(map(Path, given)) for given in (self.others, self.reverse, self.judge))
        draft = None if self.draft is None else Path(self.draft)
        weights = parse_weights(self.weights, self.reverse, self.judge)
        store = None if self.datastore is None else Path(self.datastore)
        return (Team(others, self.mean or "probabilities", reverse, judge, draft, store, weights),)

    def hint(self, folders: Mapping[tuple[str, ...] | None, Path]) -> str | None:
        """What to say of a run that has further uses which were not asked for."""
        from multihead.serving.uses import has_uses

        plain = self == TeamFlags()
        runs = [run for run in folders.values() if plain and has_uses(run)]
        if len(runs) != 1 or len(folders) != 1:
            return None
        return f"{runs[0]} has slower but better ways to translate: --uses offers them, too"


def parse_models(given: Sequence[str]) -> dict[tuple[str, ...] | None, Path]:
    """The folders of the models by source language, target language and name, if there is one; a single folder may
    have none.

    Raises:
        ConfigurationError: not SOURCE-TARGET=FOLDER or SOURCE-TARGET@NAME=FOLDER, or one given twice.
    """
    folders: dict[tuple[str, ...] | None, Path] = {}
    for text in given:
        # A folder that exists may have any name.
        pair, equals, folder = ("", "", text) if Path(text).exists() else text.partition("=")
        if not equals and len(given) > 1:
            raise ConfigurationError(f"{text}: each of several models needs its languages, as in de-en={text}")
        if not equals:
            return {None: Path(text)}
        pair, at, name = pair.partition("@")
        languages = tuple(pair.split(":" if ":" in pair else "-"))
        if len(languages) != 2 or not all(languages) or not folder or (at and not name.strip()):
            raise ConfigurationError(
                f"{text}: expected SOURCE-TARGET=FOLDER, as in de-en=run; write a colon after a code with a hyphen, as "
                "in pt-BR:en=run, and @ before a name, as in de-en@large=run"
            )
        key = (*languages, name) if at else languages
        if key in folders:
            what = "this name has" if at else "these languages have"
            remedy = "another name" if at else f"a name, as in {pair}@large={folder}"
            raise ConfigurationError(f"{text}: {what} a model already: {folders[key]}; give this one {remedy}")
        folders[key] = Path(folder)
    return folders


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
        raise ConfigurationError(f"{origin}: expected a token of printable ASCII characters without spaces")
    return token


def _check_packages() -> None:
    """Check the packages of the extra 'serve' before a model is loaded."""
    for module in ("fastapi", "httptools", "prometheus_client", "python_multipart", "uvicorn"):
        require_package(module, "serve", "serving")
