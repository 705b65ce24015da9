"""What all commands have: examples in ``--help``, lines for people.

An example is a line as users type it; ``tests/cli/test_help.py`` parses each of them. Only click is imported here:
``multihead --help`` and ``multihead env`` need nothing else. Flags under headings are in `cli.options`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

RESULT = "multihead.result"
"""Key of click's ``Context.meta``: the line that ``--quiet`` holds back until the command has ended."""


def tell(line: str) -> None:
    """Write a line to standard error; that its reader has ended is no reason to end the work.

    That happens after Ctrl-C with ``2>&1 | tee log``: the signal ends `tee`, too.
    """
    try:
        click.echo(line, err=True)
    except OSError:
        with contextlib.suppress(OSError):  # Python writes what is left when it ends: to nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class ExampleCommand(click.Command):
    """A command with examples.

    Args:
        examples: command lines, at most 76 characters each; a comment may follow ``#``.
    """

    def __init__(self, *arguments: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = tuple(examples)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        write_examples(formatter, self.examples)


class ExampleGroup(ExampleCommand, click.Group):
    """A group of commands with examples; its ``--help`` shows the whole ``short_help`` of each command."""

    command_class = ExampleCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.short_help or "") for name, command in self.commands.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order in which they were added."""
        del ctx
        return list(self.commands)


def write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    """Write examples as they are: a line that is broken could not be copied."""
    if not examples:
        return
    with formatter.section("Examples"):
        for line in examples:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")
