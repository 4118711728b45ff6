"""Strings of a trace made safe to show, where they are read: no output has to think of it.

A trace is not trusted: whoever wrote it could put a terminal's escape, a CI system's command
or a secret into any of its strings.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Final, get_args, get_type_hints

import msgspec

from wstrace.errors import one_line
from wstrace.safe_texts.redact import redact_text
from wstrace.trace.records import Counts, ReserveEvent

_NUMBERS: Final = (int, bool, float, type(None))
_PARSED: Final = (ReserveEvent, "config")
"""JSON of its own, which whoever reads it cleans."""


@lru_cache(maxsize=1 << 16)
def clean_text(text: str) -> str:
    """One line without secrets; control and direction marks and CI commands are spelt."""
    return one_line(redact_text(text))


def cleaned(value: Any) -> Any:
    """The value with every string in it clean; structs and lists are changed in place."""
    if type(value) in _NUMBERS or type(value) is Counts:  # counts: numbers, and many
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        value[:] = [cleaned(part) for part in value]
    elif isinstance(value, dict):
        return {cleaned(name): cleaned(part) for name, part in value.items()}
    elif isinstance(value, msgspec.Struct):
        _clean_fields(value)
    return value


def _clean_fields(struct: msgspec.Struct) -> None:
    for name in _with_texts(type(struct)):
        old = getattr(struct, name)
        if type(old) not in _NUMBERS:
            new = cleaned(old)
            if new is not old:
                msgspec.structs.force_setattr(struct, name, new)


@cache
def _with_texts(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields that may hold a text; reading has held the others to be numbers."""
    hints = get_type_hints(kind)
    return tuple(
        name
        for name in kind.__struct_fields__
        if (kind, name) != _PARSED
        and not set(get_args(hints[name]) or (hints[name],)) <= set(_NUMBERS)
    )
