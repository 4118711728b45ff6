"""Wrapping class methods so that they can be taken off again.

A hook that does not fit (name gone, signature changed) stands down alone and says why.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from wstrace.trace.records import Hook
from wstrace.versions import UNKNOWN, Release
from wstrace.vllm.methods import Known

Function = Callable[..., Any]
_ORIGINALS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The wrappers of this process and what they stand for. A mark on the function would not do:
`functools.wraps` copies it, and Ray sends such a copy to the process of a worker, where
nothing is wrapped yet."""


@dataclass
class _Patch:
    owner: Any
    name: str
    original: Any
    own: bool
    wrapper: Any

    def undo(self) -> None:
        if vars(self.owner).get(self.name) is not self.wrapper:
            return
        if self.own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)


def original_of(function: Any) -> Any:
    """What the wrapper of this process stands for that is in `function`, below others'
    wrappers too; None where there is none."""
    seen: set[int] = set()
    while isinstance(function, FunctionType) and id(function) not in seen:
        if function in _ORIGINALS:
            return _ORIGINALS[function]
        seen.add(id(function))
        function = vars(function).get("__wrapped__")
    return None


@dataclass
class Hooks:
    """The hooks of one process. `report` receives one record for each attempt.

    `vllm` is the release that runs.
    """

    report: Callable[[Hook], None]
    vllm: Release = UNKNOWN
    patches: list[_Patch] = field(default_factory=list)
    states: dict[str, Hook] = field(default_factory=dict)

    def wrap(self, owner: Any, known: Known, make: Callable[[Function], Function]) -> bool:
        """Replace `owner.NAME` by `make(original)`; `owner` is a class or a module.

        Returns False (and reports why) when the hook stands down; a method that this vLLM
        is too old to have is not reported. Setting a hook twice is a no-op.
        """
        label = f"{owner.__name__.rpartition('.')[2]}.{known.name}"
        original = inspect.getattr_static(owner, known.name, None)
        if original_of(original) is not None:
            return True
        why = known.misfit(original)
        if why:
            if original is not None or self.vllm.has(known.since):
                self.stand_down(label, why)
            return False
        wrapper = make(original)
        _ORIGINALS[wrapper] = original
        own = known.name in vars(owner)
        try:
            setattr(owner, known.name, wrapper)
        except (TypeError, AttributeError) as error:
            self.stand_down(label, f"cannot be replaced: {error}")
            return False
        self.patches.append(_Patch(owner, known.name, original, own, wrapper))
        self._say(label, True, "")
        return True

    def is_set(self, label: str) -> bool:
        """Whether the hook `Owner.method` is on."""
        return label in self.states and self.states[label].set

    def stand_down(self, label: str, why: str) -> None:
        """Report a hook that is not set."""
        self._say(label, False, why)

    def remove(self) -> None:
        """Take all hooks off, newest first; a method that others wrapped since stays."""
        for patch in reversed(self.patches):
            patch.undo()
        self.patches.clear()

    def unwrap(self, owner: Any, known: Known) -> None:
        """Take one hook off; it stays known as set, and may be set again."""
        for patch in [p for p in self.patches if p.owner is owner and p.name == known.name]:
            patch.undo()
            self.patches.remove(patch)

    def _say(self, label: str, is_set: bool, why: str) -> None:
        hook = Hook(name=label, set=is_set, why=why)
        if self.states.get(label) != hook:
            self.states[label] = hook
            self.report(hook)
