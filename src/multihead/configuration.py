"""Settings: base class, validation, TOML files; facts about the machine.

A group of settings is a frozen pydantic model with a docstring under each field. `build` makes it from a TOML file,
command-line flags or JSON. A misspelled key gives the same error everywhere, in Python too, which names the nearest
existing key. The settings themselves are defined in the packages that use them.

`inspect_machine` and `get_launch` return what settings depend on: processor, device, and the processes that torchrun
started. torch is imported only by the functions that need it, because commands read settings before they import torch.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from multihead.errors import ConfigurationError, SettingsError, shortened, shown
from multihead.platforms import memory_by_windows, processor


class Settings(BaseModel):
    """A frozen group of settings; unknown keys and numbers that JSON lacks (inf, nan) are errors.

    Raises:
        SettingsError: an unknown key (the message names the nearest one), or an invalid value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(f"{type(self).__name__}: {_describe_all(type(self), error)}") from None

    # pydantic calls the initializers of settings inside of settings only if they are not of this kind. It would report
    # their errors as a text, and not where they are.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def without_defaults(self, values: dict[str, Any], names: Container[str]) -> dict[str, Any]:
        """A dump of these settings without the fields of some names that have their defaults."""
        fields = type(self).model_fields
        return {
            name: value
            for name, value in values.items()
            if name not in names or getattr(self, name) != fields[name].default
        }


SettingsType = TypeVar("SettingsType", bound=Settings)

# Upper bounds of settings. A file can name any number, and what is made of it has to fit into a machine. Nothing that
# is trained or published comes near these.

MOST_ENTRIES = 1 << 24
"""Entries of a vocabulary, and classes. The largest published vocabularies have one million."""
MOST_WIDTH = 1 << 16
"""Width of a state, a head, or the number of heads. The widest published states have 18,432 numbers."""
MOST_INNER = 1 << 20
"""Hidden width of a feed-forward network. The widest published one has 73,728."""
MOST_LAYERS = 1 << 9
"""Layers of an encoder or a decoder. The deepest published Transformer has 500 on each side."""
MOST_TOKENS = 1 << 20
"""Tokens of a text, positions of a network. Books are shorter."""
MOST_BEAM = 1 << 10
"""Hypotheses of a sentence. Lists of 1,000 are ranked again in the literature; each has a row of logits."""
MOST_SAMPLES = 1 << 16
"""Samples of a sentence, each with a row of logits; the literature on minimum Bayes risk draws up to 4,096."""
MOST_FACTOR = 1000.0
"""Weights, penalties and multiples, where less than 20 is usual."""
MOST_UPDATES = 1 << 40
"""Updates of a run, and everything that is counted in updates: a thousand a second for 35 years."""
MOST_BATCH = 1 << 30
"""Tokens, examples or sequences that are processed or counted at once."""
MOST_THREADS = 1 << 12
"""Processor threads of a machine; starting more fails in the system."""
LAST_SEED = (1 << 63) - 1
"""The largest seed that every generator takes."""


def build(cls: type[SettingsType], values: Mapping[str, Any], origin: str) -> SettingsType:
    """``cls(**values)``, with the origin of the values in error messages.

    Args:
        cls: the group of settings.
        values: its fields; missing ones get their defaults.
        origin: source of the values ("train.toml", "the command line"), for the message.

    Raises:
        ConfigurationError: an unknown key (the message names the nearest one), or an invalid value.
    """
    unknown = [key for key in values if key not in cls.model_fields]
    if len(unknown) > _MOST_PROBLEMS:
        first = ", ".join(f"'{shortened(key)}'" for key in unknown[:_MOST_PROBLEMS])
        raise ConfigurationError(f"{origin}: {len(unknown):,} unknown settings, the first of them {first}")
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigurationError(f"{origin}: {_describe_all(cls, error)}") from None


_MOST_PROBLEMS = 8
"""Problems that one message names."""


def _describe_all(cls: type[Settings], error: ValidationError) -> str:
    """Describe the errors of pydantic's report in one line; unknown keys first, since they explain missing ones."""
    details = sorted(error.errors(include_url=False), key=lambda detail: detail["type"] != "extra_forbidden")
    problems = [_describe(cls, detail) for detail in details[:_MOST_PROBLEMS]]
    more = error.error_count() - len(problems)
    return f"{'; '.join(problems)}{f'; and {more:,} more' if more else ''}"


def _describe(cls: type[Settings], detail: ErrorDetails) -> str:
    """Describe one error of pydantic's report."""
    key = shortened(".".join(str(part) for part in detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f"there is no setting '{key}'{nearest(key, list(cls.model_fields))}"
    got = "" if detail["type"] == "missing" else f", got {shown(detail['input'])}"
    message = shortened(detail["msg"].removeprefix("Value error, "), 1000)
    if not key:  # a condition on several settings: the message names them
        return message
    return f"{key}: {message[:1].lower()}{message[1:]}{got}"


def nearest(word: str, known: list[str]) -> str:
    """``"; did you mean 'x'?"``, or the list of known words if none is similar."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; there are: {', '.join(sorted(known))}"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, or a pipe as from ``<(command)``, which is read to its end.

    Raises:
        ConfigurationError: the file is missing, unreadable, not TOML, or larger than any settings are.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(_MOST_TOML + 1)
        if len(content) > _MOST_TOML:
            raise ConfigurationError(f"{path}: not a file of settings: it has more than {_MOST_TOML:,} bytes")
        return tomllib.loads(content.decode("utf-8-sig"))  # editors of Windows begin files with a byte order mark
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: not valid TOML: {shortened(str(error))}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not a TOML file: it is not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{path}: not valid TOML: a number is too long, or the nesting too deep") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None


_MOST_TOML = 1 << 20
"""Maximum bytes of a TOML file."""


@dataclass(frozen=True)
class Machine:
    """Facts that settings depend on."""

    threads: int
    """Number of processor threads that PyTorch uses."""
    device: str
    """cuda or mps if available, else cpu."""
    fast_bfloat16: bool
    """Whether ``device`` has hardware for bfloat16 products."""
    name: str
    """Description for the log."""


def inspect_machine(device: str | None = None) -> Machine:
    """Inspect the machine; changes nothing.

    Args:
        device: the one that is to be used, which `require_device` checks; None for the fastest one.
    """
    import torch

    threads = torch.get_num_threads()  # the number of cores, unless the user or the caller has set it
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if device.startswith("cuda") and torch.cuda.is_available():
        return Machine(threads, device, torch.cuda.is_bf16_supported(), torch.cuda.get_device_name())
    if device == "mps":
        return Machine(threads, device, False, "the GPU of a Mac (MPS)")
    if device != "cpu":
        return Machine(threads, device, False, device)
    found = sorted(processor().features & {"avx512_bf16", "amx_bf16"})
    name = f"{threads} processor threads" + (f" with {' and '.join(found)}" if found else "")
    return Machine(threads, "cpu", bool(found), name)


def memory_of(device: str) -> int | None:
    """The bytes of memory of a device; for the CPU what the machine has, or this process may use; None if unknown."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    if device == "mps":
        import torch

        return int(torch.mps.recommended_max_memory())
    found = []
    with contextlib.suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if not found:
        found = [told.total for told in (memory_by_windows(),) if told is not None]
    for place in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            found.append(int((Path("/sys/fs/cgroup") / place).read_text(encoding="ascii")))
    return min(found, default=None)


def require_device(name: str, precision: str | None = None, *, compiled: bool | None = None) -> None:
    """Check that a device is available.

    Args:
        name: the device.
        precision: of the training that is asked for on it.
        compiled: whether torch.compile is asked for.

    Raises:
        ConfigurationError: the device is CUDA or MPS, which PyTorch does not find; or MPS, which trains otherwise.
    """
    if name == "cpu":
        return
    import torch

    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigurationError(f"device: got {name}, but PyTorch finds no CUDA on this machine; use cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError("device: got mps, but PyTorch finds no MPS on this machine; use cpu")
    if name == "mps" and (precision == "bfloat16" or compiled):
        wish = "--compile" if compiled else "--precision bfloat16"
        raise ConfigurationError(f"{wish}: mps trains in float32, and uncompiled; leave it out, or use --device cpu")


class Launch(NamedTuple):
    """The place of a process among the processes of its run."""

    rank: int = 0
    """Number of the process, from 0; the first one writes the run folder and prints."""
    size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """Number of the process on its machine; selects its GPU."""
    local_size: int = 1
    """Number of processes on its machine."""


def get_launch() -> Launch:
    """The place of this process as ``torchrun`` set it in the environment; without ``torchrun`` a single process."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Launch()
    return Launch(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")))
