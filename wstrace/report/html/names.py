"""Names from a trace made safe to show: no secrets, no control characters, no endless lines.

Markup is not escaped here: jinja2 does that for HTML, `figure_text` for plotly, which reads a
small HTML of its own in every label.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from wstrace.report.finding_text import rank_text, slot_text
from wstrace.trace.records import Ranks, Slot
from wstrace.trace.redact import redact_argv, redact_text

LONGEST: Final = 160
_READ: Final = 4096
_HIDDEN: Final = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


@lru_cache(maxsize=20_000)
def clean(text: str, longest: int = LONGEST) -> str:
    """`text` without credentials; control and direction marks spelt out; middle elided.

    Secrets go first: a cut through one would hide it from the patterns but not from a reader.
    """
    if len(text) > _READ:
        return visible(redact_text(text[:_READ]))[: longest - 1] + "…"
    return elide(visible(redact_text(text)), longest)


def clean_argv(argv: Sequence[str]) -> str:
    """A command line as one string, secrets removed."""
    return " ".join(clean(word, 400) for word in redact_argv(argv))


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


def figure_text(text: str, longest: int = LONGEST) -> str:
    """`clean` text for a plotly label: no tag and no entity of it is read as markup."""
    return html.escape(clean(text, longest), quote=False)


def slot_name(slot: Slot) -> str:
    """`ubatch 0, lane 0`, also for the only slot there is."""
    return slot_text(slot) or "ubatch 0, lane 0"


def rank_label(ranks: Ranks, world: Ranks | None = None) -> str:
    """`tp3`, `dp0 pp1`: the groups that have several members; `rank 0` where none has."""
    names = ("dp", "pp", "tp", "ep")
    found = [(n, getattr(ranks, n)) for n in names]
    several = [
        f"{n}{v}" for n, v in found if v is not None and (getattr(world, n, None) or 1) > 1
    ]
    return " ".join(several) or rank_text(ranks)


def rank_names(ranks: Iterable[Ranks], world: Ranks | None = None, most: int = 6) -> str:
    """`tp0, tp1 and 6 more`."""
    names = [rank_label(r, world) for r in ranks]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
