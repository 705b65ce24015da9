"""The command ``multihead``: one line for a mistake, exit status 2; no traceback for what can be foreseen.

Commands stand in a file each and are imported when they are called, so that ``--help`` does not wait for PyTorch.
Process-wide state (threads, allocator, signals) is set in `cli.process`, and nowhere else in this package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from multihead import __version__
from multihead.cli.demo import demo
from multihead.cli.evaluate import evaluate
from multihead.cli.train import train
from multihead.cli.translate import translate
from multihead.errors import Interrupted, MultiheadError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="multihead")
def multihead() -> None:
    """Attention and sequence-to-sequence Transformers: two text files become a translator."""


for command in (train, translate, evaluate, demo):
    multihead.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; see `multihead.errors` for which is which."""
    try:
        result = multihead.main(args=arguments, prog_name="multihead", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _fail(" ".join(error.format_message().split()), 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except Interrupted as stop:
        return _fail(str(stop), stop.exit_status)
    except MultiheadError as error:
        return _fail(str(error), error.exit_status)
    except BrokenPipeError:
        return _broken_pipe()


def _fail(message: str, status: int) -> int:
    print(f"multihead: {message}", file=sys.stderr)  # noqa: T201
    return status


def _broken_pipe() -> int:
    """Whoever read our output has gone: end quietly, as other filters do."""
    sys.stderr.close()
    return 141


def entry() -> None:
    """What the installed command calls."""
    sys.exit(main())
