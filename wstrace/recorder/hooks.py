"""Wrapping class methods so that they can be taken off again.

A hook that does not fit (name gone, signature changed) stands down alone and says why.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wstrace.trace.records import Hook

Function = Callable[..., Any]
MARK = "__wstrace_original__"


@dataclass
class _Patch:
    owner: type
    name: str
    original: Any
    own: bool
    wrapper: Any


@dataclass
class Hooks:
    """The hooks of one process. `report` receives one record for each attempt."""

    report: Callable[[Hook], None]
    patches: list[_Patch] = field(default_factory=list)
    states: dict[str, Hook] = field(default_factory=dict)

    def wrap(
        self,
        owner: type,
        name: str,
        make: Callable[[Function], Function],
        parameters: tuple[str, ...] | None = None,
    ) -> bool:
        """Replace `owner.name` by `make(original)`.

        `parameters` are the parameter names that the hook was written for; None where it
        passes on whatever it gets. Returns False (and reports why) when the hook stands
        down. Setting a hook twice is a no-op.
        """
        label = f"{owner.__name__}.{name}"
        original = inspect.getattr_static(owner, name, None)
        if getattr(original, MARK, None) is not None:
            return True
        why = _misfit(original, parameters)
        if why:
            self._say(label, False, why)
            return False
        wrapper = make(original)
        setattr(wrapper, MARK, original)
        self.patches.append(_Patch(owner, name, original, name in vars(owner), wrapper))
        setattr(owner, name, wrapper)
        self._say(label, True, "")
        return True

    def stand_down(self, label: str, why: str) -> None:
        """Report a hook that could not even be tried."""
        self._say(label, False, why)

    def remove(self) -> None:
        """Take all hooks off, newest first; a method that others wrapped since stays."""
        for patch in reversed(self.patches):
            if vars(patch.owner).get(patch.name) is not patch.wrapper:
                continue
            if patch.own:
                setattr(patch.owner, patch.name, patch.original)
            else:
                delattr(patch.owner, patch.name)
        self.patches.clear()

    def _say(self, label: str, is_set: bool, why: str) -> None:
        hook = Hook(name=label, set=is_set, why=why)
        if self.states.get(label) != hook:
            self.states[label] = hook
            self.report(hook)


def _misfit(original: Any, parameters: tuple[str, ...] | None) -> str:
    """Why this attribute cannot be wrapped; empty when it can."""
    if original is None:
        return "no such method in this vLLM"
    if not callable(original):
        return f"is a {type(original).__name__}, not a method"
    if parameters is None:
        return ""
    found = tuple(inspect.signature(original).parameters)
    if found != parameters:
        return f"signature is ({', '.join(found)}), known is ({', '.join(parameters)})"
    return ""
