"""The one console of every command: texts of others are no markup, no emoji and no numbers."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.progress import ProgressColumn, TextColumn


def plain_console(**options: Any) -> Console:
    """A console on standard output (rich's `options`: another stream) on which a string of a
    trace, a log or a path is shown as it is. Our own style is a `Text`'s."""
    chosen = {"file": None if options.get("stderr") else sys.stdout, **options}
    return Console(markup=False, emoji=False, highlight=False, **chosen)


def plain_description() -> ProgressColumn:
    """The description of a bar, which may be the name of a file."""
    return TextColumn("{task.description}", markup=False)
