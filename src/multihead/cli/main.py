"""The command ``multihead``: one line for a mistake, exit status 2; no traceback for what can be foreseen.

Commands stand in a file each and are imported when they are called, so that ``--help`` does not wait for PyTorch.
Process-wide state (threads, allocator, signals) is set in `cli.process`, and nowhere else in this package.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import click

from multihead import __version__
from multihead.cli.align import align
from multihead.cli.attention import attention
from multihead.cli.average import average
from multihead.cli.bpe import bpe
from multihead.cli.classify import classify
from multihead.cli.compare import compare
from multihead.cli.demo import demo
from multihead.cli.doctor import doctor
from multihead.cli.evaluate import evaluate
from multihead.cli.explain import explain
from multihead.cli.fill_mask import fill_mask
from multihead.cli.plot import plot
from multihead.cli.pointer import pointer
from multihead.cli.prepare import prepare
from multihead.cli.pretrain import pretrain
from multihead.cli.process import OutputClosedError
from multihead.cli.quantise import quantise
from multihead.cli.score import score
from multihead.cli.selftest import selftest
from multihead.cli.serve import serve
from multihead.cli.shortlist import shortlist
from multihead.cli.train import train
from multihead.cli.translate import translate
from multihead.errors import MultiheadError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="multihead")
def multihead() -> None:
    """Attention and sequence-to-sequence Transformers: two text files become a translator."""


for command in (
    *(train, translate, evaluate, prepare, average, attention, plot, bpe, demo),
    *(doctor, explain, compare, serve),
    *(score, align, selftest, quantise, shortlist),
    *(pretrain, fill_mask, classify, pointer),
):
    multihead.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status; see `multihead.errors` for which is which."""
    try:
        result = multihead.main(args=arguments, prog_name="multihead", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except OutputClosedError:
        return 128 + signal.SIGPIPE
    except MultiheadError as error:
        return _fail(str(error), error.exit_status)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", 1)


def _fail(message: str, status: int) -> int:
    """One line, whatever the message is made of."""
    line = " ".join(part.strip() for part in message.splitlines())
    print(f"multihead: {line}", file=sys.stderr)  # noqa: T201
    return status


def entry() -> None:
    """What the installed command calls."""
    status = main()
    try:
        sys.stdout.flush()
    except OSError as error:
        # What cannot be written would be tried once more, and complained about, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if status == 0:
            status = _fail(f"standard output: cannot be written: {error.strerror}", 1)
    sys.exit(status)
