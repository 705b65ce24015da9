"""What was made of a mask is kept with it, so that the layers of a network, which share the mask, share that too."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

_Made = TypeVar("_Made")


class Remembering:
    """Something that keeps, of each kind, the last thing that was made of it."""

    @property
    def constant(self) -> bool:
        """Whether making something of it twice gives the same: it may then be kept."""
        return True

    def remembered(self, name: str, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """What ``make`` returns; made once for as long as the same is asked for.

        Nothing is kept while a compiler traces (compiled code would be tied to one key), nor of what may change.

        Args:
            name: the kind.
            key: what it depends on besides this object.
            make: makes it.
        """
        if torch.compiler.is_compiling() or not self.constant:
            return make()
        # What was made in inference mode cannot be saved for a backward pass.
        key = (key, torch.is_inference_mode_enabled())
        memory: dict[str, tuple[Hashable, Any]] = self.__dict__.setdefault("_memory", {})
        found = memory.get(name)
        if found is None or found[0] != key:
            found = memory[name] = (key, make())
        return found[1]

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: without what was made of it."""
        return {name: value for name, value in self.__dict__.items() if name != "_memory"}
