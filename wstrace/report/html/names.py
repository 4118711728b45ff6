"""What a page calls commands and ranks; `report.safe` makes any name fit to show.

Markup is escaped by jinja2, for a figure by `figure_text`: plotly reads a small HTML of its own
in every label.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from wstrace.report.safe import LONGEST, clean, elide, visible
from wstrace.runs.worker import rank_label
from wstrace.safe_texts.redact import redact_argv
from wstrace.trace.records import Ranks

__all__ = [
    "LONGEST",
    "clean",
    "clean_argv",
    "elide",
    "figure_text",
    "rank_label",
    "rank_names",
    "unbroken",
    "visible",
]


def clean_argv(argv: Sequence[str]) -> str:
    """A command line as one string, secrets removed."""
    return " ".join(clean(word, 400) for word in redact_argv(argv))


def unbroken(text: str) -> str:
    """A size and its unit stay on one line."""
    # matches: "8.00 MiB"
    return re.sub(r"(\d) (?=[KMGT]?i?B\b)", "\\1\u00a0", text)


def figure_text(text: str, longest: int = LONGEST) -> str:
    """`clean` text for a plotly label: no tag and no entity of it is read as markup."""
    return html.escape(clean(text, longest), quote=False)


def rank_names(ranks: Iterable[Ranks], world: Ranks | None = None, most: int = 6) -> str:
    """`tp0, tp1 and 6 more`."""
    names = [rank_label(r, world) for r in ranks]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
