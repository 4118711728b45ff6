"""Names from a trace made safe to show: no secrets, no control characters, no command of a CI
system, no endless lines.

Markup is not escaped here: each format does that in its own way.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from wstrace.safe_texts.ci_commands import harmless
from wstrace.safe_texts.redact import redact_text

LONGEST: Final = 160
_READ: Final = 4096
_HIDDEN: Final = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


@lru_cache(maxsize=20_000)
def clean(text: str, longest: int = LONGEST) -> str:
    """`text` without credentials; control and direction marks and CI commands spelt out; middle
    elided.

    Secrets go first: a cut through one would hide it from the patterns but not from a reader.
    """
    if len(text) > _READ:
        return harmless(visible(redact_text(text[:_READ])))[: longest - 1] + "…"
    return elide(harmless(visible(redact_text(text))), longest)


def visible(text: str) -> str:
    """Characters that reorder, hide or break text become `<U+202E>`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelt(c) if unicodedata.category(c) in _HIDDEN else c for c in text)


def _spelt(character: str) -> str:
    return f"<U+{ord(character):04X}>"


def elide(text: str, longest: int) -> str:
    """At most `longest` characters: the start, an ellipsis, the end."""
    if len(text) <= longest:
        return text
    head = longest * 2 // 3
    return f"{text[:head]}…{text[-(longest - head - 1) :]}"
