"""The command ``multihead``: subcommands, error messages, exit status.

A foreseeable error is one line on standard error, without a traceback. Each command has a module of its own, which
imports what it needs when the command runs, so that ``--help`` does not wait for PyTorch. `cli.process` sets everything
process-wide (threads, allocator, signals).
"""

from __future__ import annotations

import os
import signal
import sys
import time
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
from multihead.cli.export import export
from multihead.cli.fill_mask import fill_mask
from multihead.cli.import_model import import_model
from multihead.cli.plot import plot
from multihead.cli.pointer import pointer
from multihead.cli.prepare import prepare
from multihead.cli.pretrain import pretrain
from multihead.cli.process import OutputClosedError
from multihead.cli.quantise import quantise
from multihead.cli.report import report
from multihead.cli.score import score
from multihead.cli.selftest import selftest
from multihead.cli.serve import serve
from multihead.cli.shortlist import shortlist
from multihead.cli.synthesize import backtranslate, distill
from multihead.cli.train import train
from multihead.cli.translate import translate
from multihead.cli.tune import tune
from multihead.errors import MultiheadError

_ALIASES = {"quantize": "quantise"}
"""Other spellings of commands; ``--help`` does not list them."""


class _Group(click.Group):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="multihead")
def multihead() -> None:
    """Attention and sequence-to-sequence Transformers: two text files become a translator."""


for command in (
    *(train, translate, evaluate, prepare, average, attention, plot, report, bpe, demo),
    *(doctor, explain, compare, tune, serve),
    *(backtranslate, distill),
    *(score, align, selftest, quantise, shortlist, import_model, export),
    *(pretrain, fill_mask, classify, pointer),
):
    multihead.add_command(command)


def main(arguments: Sequence[str] | None = None, began: float | None = None) -> int:
    """Run a command and return its exit status; `multihead.errors` lists them.

    Args:
        arguments: the words after the name of the command; those of this process if ``None``.
        began: when this process began, by `time.monotonic`; now if ``None``.
    """
    began = time.monotonic() if began is None else began
    try:
        result = multihead.main(args=arguments, prog_name="multihead", standalone_mode=False, obj=began)
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
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _fail("not enough memory for this input; give shorter lines, or smaller batches (--batch-tokens)", 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", 1)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is PyTorch's error of a GPU or a CPU (which has no class of its own), or Python's."""
    said = str(error)
    return isinstance(error, MemoryError) or "out of memory" in said or "DefaultCPUAllocator: " in said


def _fail(message: str, status: int) -> int:
    """Print a message as one line."""
    line = " ".join(part.strip() for part in message.splitlines())
    print(f"multihead: {line}", file=sys.stderr)  # noqa: T201
    return status


def entry() -> None:
    """Entry point of the installed command."""
    status = main(began=time.monotonic() - time.process_time())
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes standard output again when it ends, and would report the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if status == 0:
            status = _fail(f"standard output: cannot be written: {error.strerror}", 1)
    sys.exit(status)
