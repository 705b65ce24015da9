"""The command ``multihead``: subcommands, error messages, exit status.

A foreseeable error is one line on standard error, without a traceback. Each command has a module of its own, which is
imported when the command is named, and imports what it needs when the command runs: ``multihead --help`` waits for no
command, and ``--help`` of a command does not wait for PyTorch. `cli.process` sets everything process-wide (threads,
allocator, signals).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections import UserDict
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from multihead import __version__
from multihead.cli.help import RESULT, ExampleGroup, tell
from multihead.errors import MultiheadError, OutputClosedError, SurroundingsError
from multihead.platforms import is_closed_pipe, replace_closed_streams, use_utf8_streams

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: dict[str, dict[str, str]] = {
    "Translators": {
        "train": "Train a translator on sentences and their translations.",
        "translate": "Translate text line by line.",
        "evaluate": "Translate a test set and score it: BLEU, chrF and TER.",
        "serve": "Serve models over HTTP, with a web page to try them.",
        "demo": "Train and try a small translator, in three minutes.",
    },
    "Text": {
        "doctor": "Look for faults in text, subwords and network.",
        "clean": "Remove faulty pairs from a corpus.",
        "prepare": "Learn subwords and store token ids ahead of training.",
        "bpe": "Learn subwords, split text into them, join them again.",
        "backtranslate": "Back-translate text in the target language into pairs.",
        "distill": "Make training pairs from a model's translations.",
    },
    "Results": {
        "compare": "Compare systems on a test set, with significance tests.",
        "score": "Print the log-probabilities of given translations.",
        "align": "Align the words of given translations.",
        "tune": "Tune the weights that rerank translations.",
        "attention": "Show what a model attends to while it translates.",
        "explain": "Show why a sentence is translated as it is.",
        "heads": "Measure how much each attention head matters.",
        "plot": "Draw the learning curves of runs.",
        "report": "Summarize a run: curves, gain from more text, errors.",
        "selftest": "Check that translations do not depend on the batch.",
    },
    "Models": {
        "average": "Average the weights of several models.",
        "adapt": "Merge an adapter file into the model that it was made for.",
        "shrink": "Make a smaller model from parts of a trained one.",
        "quantise": "Quantize a model: rounded weights, a smaller file.",
        "shortlist": "Learn a vocabulary shortlist for faster search.",
        "datastore": "Build a datastore for nearest-neighbor translation.",
        "import": "Save a model of another program as one of ours.",
        "export": "Write a model in the format of another program.",
    },
    "Other networks": {
        "pretrain": "Pre-train a BERT on plain text.",
        "fill-mask": "Predict hidden words with a BERT.",
        "generate": "Continue texts with a language model.",
        "classify": "Classify documents, and show which words decide.",
        "pointer": "Sort numbers and find convex hulls with attention.",
    },
    "This program": {
        "env": "Print the facts that a bug report needs.",
    },
}
"""What each command does, under the headings of ``multihead --help``."""

_ELSEWHERE = {
    "backtranslate": ("synthesize", "backtranslate"),
    "distill": ("synthesize", "distill"),
    "import": ("import_model", "import_model"),
}
"""Module and function of commands where these are not called as the command."""

_ALIASES = {"quantize": "quantise"}
"""Other spellings of commands; ``--help`` does not list them."""


class _Commands(UserDict[str, Any]):
    """The commands by name. One that is given by its module and function is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, click.Command):
            return found
        module, function = found
        return getattr(import_module(f"multihead.cli.{module}"), function)


def _place(command: str) -> tuple[str, str]:
    """Module and function of a command."""
    name = command.replace("-", "_")
    return _ELSEWHERE.get(command, (name, name))


@contextlib.contextmanager
def _errors_of_output() -> Iterator[None]:
    """Raise ours where standard output is closed: click would end with status 1, without a message."""
    try:
        yield
    except io.UnsupportedOperation as error:
        if sys.stdout.writable():
            raise
        raise SurroundingsError("standard output: cannot be written: it is closed") from error
    except OSError as error:
        if error.filename is None and is_closed_pipe(error):  # an error of a file names it
            raise OutputClosedError from error
        raise


class _Group(ExampleGroup):
    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        with _errors_of_output():  # of --help and --version
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_of_output():
            return super().invoke(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, _ALIASES.get(cmd_name, cmd_name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        width = max(len(name) for names in COMMANDS.values() for name in names)
        for heading, names in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", text) for name, text in names.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The completions of a word, without importing a command."""
        from click.shell_completion import CompletionItem

        found = [(name, text) for names in COMMANDS.values() for name, text in names.items()]
        items = [CompletionItem(name, help=text) for name, text in found if name.startswith(incomplete)]
        return items or click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=_Group,
    commands=_Commands({name: _place(name) for names in COMMANDS.values() for name in names}),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    examples=(
        "multihead train --source train.de --target train.en --output run",
        "multihead translate run < input.de > output.en",
        "multihead evaluate run --source test.de --target test.en",
        "multihead train --help    # the flags of a command, and further examples",
    ),
)
@click.version_option(__version__, prog_name="multihead")
def multihead() -> None:
    """Attention and sequence-to-sequence Transformers: two text files become a translator."""


@multihead.result_callback()
@click.pass_context
def _write_result(context: click.Context, status: Any) -> Any:
    """Write the line that ``--quiet`` has held back, when a command has ended without an error."""
    if RESULT in context.meta:
        tell(context.meta[RESULT])
    return status


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
        with contextlib.suppress(OSError):  # standard output may be closed
            click.echo(error.format_message())
        return 2
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except OutputClosedError as error:
        return error.exit_status
    except MultiheadError as error:
        return _fail(str(error), error.exit_status)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _fail("not enough memory for this input; give shorter lines, or smaller batches (--batch-tokens)", 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", 1)
    except ImportError as error:
        if (error.name or "").startswith("multihead"):
            raise
        return _fail(f"{error}: a package is missing or broken, and `multihead env` says which", 1)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether it is PyTorch's error of a GPU or a CPU (which has no class of its own), or Python's."""
    said = str(error)
    return isinstance(error, MemoryError) or "out of memory" in said or "DefaultCPUAllocator: " in said


def _fail(message: str, status: int) -> int:
    """Print a message as one line."""
    tell(f"multihead: {' '.join(part.strip() for part in message.splitlines())}")
    return status


def entry() -> None:
    """Entry point of the installed command."""
    replace_closed_streams()
    use_utf8_streams()
    status = main(began=time.monotonic() - time.process_time())
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python flushes standard output again when it ends, and would report the same error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if status == 0:
            status = _fail(f"standard output: cannot be written: {error.strerror}", 1)
    sys.exit(status)
