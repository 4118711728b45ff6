"""Which format an output has where none was asked for: that of its file's extension."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

EXTENSIONS: Final[dict[str, str]] = {
    ".htm": "html",
    ".html": "html",
    ".json": "json",
    ".md": "markdown",
    ".parquet": "parquet",
    ".sarif": "sarif",
    ".txt": "text",
    ".xml": "junit",
}


def by_extension(target: Path, formats: Collection[str]) -> str | None:
    """The one of `formats` that the extension names, in capitals too; None for any other.

    Standard output (`-`) is text.
    """
    name = "text" if str(target) == "-" else EXTENSIONS.get(target.suffix.lower())
    return name if name in formats else None


def extensions(formats: Collection[str]) -> list[str]:
    """The extensions that name one of `formats`."""
    return [extension for extension, name in EXTENSIONS.items() if name in formats]
