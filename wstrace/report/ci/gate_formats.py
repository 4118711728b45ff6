"""The gate's formats by name, and which of them goes to which file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError
from wstrace.gate.judge import Judgement
from wstrace.report.formats import by_extension, extensions

FORMATS: Final = ("text", "json", "junit", "github", "markdown", "sarif")
LINES: Final = frozenset(("text", "github", "markdown"))


def reporter(name: str) -> Callable[[Judgement], str]:
    """The function that renders a judgement in this format."""
    from wstrace.report.ci import gate_json, gate_markdown, gate_text, github, junit, sarif

    renderers: dict[str, Callable[[Judgement], str]] = {
        "text": gate_text.render,
        "json": gate_json.render,
        "junit": junit.render,
        "github": github.render,
        "markdown": gate_markdown.render,
        "sarif": sarif.render,
    }
    return renderers[name]


def pair(formats: Sequence[str], outputs: Sequence[Path]) -> list[tuple[str, Path | None]]:
    """Formats with where each goes; None is stdout.

    `NAME:PATH` names its file. An output takes the first open format that its extension
    names, else the first open one; an output that is left over is of the format of its
    extension. Formats that are left over go to stdout: several only if all are made of
    lines. Raises WstraceError (exit 2) where that cannot be done.
    """
    pairs = [_named(word) for word in formats]
    left = list(outputs)
    for wants_its_own in (True, False):
        for output in list(left):
            index = _open(pairs, by_extension(output, FORMATS) if wants_its_own else None)
            if index is not None:
                pairs[index] = (pairs[index][0], output)
                left.remove(output)
    pairs += [(_named_by(output), output) for output in left]
    pairs = [(name, None if str(path) == "-" else path) for name, path in pairs]
    return _checked(pairs or [("text", None)])


def _named(word: str) -> tuple[str, Path | None]:
    name, _, path = word.partition(":")
    if name not in FORMATS:
        raise WstraceError(
            f"No such format: {name!r}.", f"Choose from {', '.join(FORMATS)}, or NAME:PATH."
        )
    return name, Path(path) if path else None


def _open(pairs: list[tuple[str, Path | None]], wanted: str | None) -> int | None:
    """Index of the first format without a file, of the wanted name if there is one."""
    return next(
        (i for i, (name, path) in enumerate(pairs) if path is None and wanted in (None, name)),
        None,
    )


def _named_by(output: Path) -> str:
    name = by_extension(output, FORMATS)
    if name is None:
        raise WstraceError(
            f"Cannot tell the format of {output.name!r}.",
            f"Write --format NAME:{output}, or use {', '.join(extensions(FORMATS))}.",
        )
    return name


def _checked(pairs: list[tuple[str, Path | None]]) -> list[tuple[str, Path | None]]:
    on_stdout = [name for name, path in pairs if path is None]
    if len(set(on_stdout)) < len(on_stdout):
        raise WstraceError(
            "One format goes to stdout twice.", "Leave one out, or give it a file: NAME:PATH."
        )
    if len(on_stdout) > 1 and not LINES.issuperset(on_stdout):
        raise WstraceError(
            f"{' and '.join(on_stdout)} cannot share stdout.",
            "Give each a file: --format junit:junit.xml, or -o junit.xml.",
        )
    files = [path.absolute() for _, path in pairs if path is not None]
    if len(set(files)) < len(files):
        raise WstraceError("Two formats go to one file.", "Give each a file of its own.")
    return pairs
