"""`[tool.wstrace]`: found in the nearest pyproject.toml from the current directory upward."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from wstrace.errors import WstraceError
from wstrace.gate.limits import Limits
from wstrace.plain_files import read_plain
from wstrace.reserve.schema import GRADES, Grade
from wstrace.units import parse_bytes

FILE: Final = "pyproject.toml"
MAX_SIZE: Final = 4 << 20
KEYS: Final[dict[str, type]] = {
    "fail-on": str,
    "allow-unlocked": bool,
    "min-exercise": str,
    "baseline": str,
    "tolerance": str,
    "require": str,
    "ranks": int,
    "arena": dict,
    "sites": dict,
}


@dataclass(frozen=True)
class Config:
    """The table's values; what the command line gives wins over them."""

    path: Path | None = None
    fail_on: str | None = None
    allow_unlocked: bool = False
    min_exercise: str | None = None
    baseline: Path | None = None
    tolerance: str | None = None
    limits: Limits = field(default_factory=Limits)


def find_config(start: Path) -> Path | None:
    """The nearest pyproject.toml with a [tool.wstrace] table, from `start` upward."""
    for folder in (start, *start.parents):
        path = folder / FILE
        if path.is_file() and _table(path) is not None:
            return path
    return None


def read_config(path: Path | None) -> Config:
    """The [tool.wstrace] table of a file; the defaults for None.

    Raises WstraceError (exit 2) for a file that cannot be read, an unknown key, or a value
    of the wrong type. `baseline` is relative to the file.
    """
    if path is None:
        return Config()
    table = _table(path)
    if table is None:
        raise WstraceError(f"{path} has no [tool.wstrace] table.", "Add one: docs/gate.md.")
    _check(path, table)
    baseline = table.get("baseline")
    return Config(
        path=path,
        fail_on=table.get("fail-on"),
        allow_unlocked=table.get("allow-unlocked", False),
        min_exercise=table.get("min-exercise"),
        baseline=path.parent / baseline if baseline else None,
        tolerance=table.get("tolerance"),
        limits=_limits(path, table),
    )


def _table(path: Path) -> dict[str, Any] | None:
    try:
        document = tomllib.loads(read_plain(path, MAX_SIZE).decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise WstraceError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.",
            "Mend the file, or name another one with --config.",
        ) from error
    tool = document.get("tool")
    table = tool.get("wstrace") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else None


def _check(path: Path, table: Mapping[str, Any]) -> None:
    for key, value in table.items():
        expected = KEYS.get(key)
        if expected is None:
            raise _wrong(path, f"does not know {key!r}", f"Known: {', '.join(KEYS)}.")
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise _wrong(path, f"{key} is {value!r}", f"Write {_example(key)}.")


def _example(key: str) -> str:
    examples = {
        "allow-unlocked": "allow-unlocked = true",
        "ranks": "ranks = 8",
        "arena": '[tool.wstrace.arena] with lines like "*Qwen3*" = "512MiB"',
        "sites": '[tool.wstrace.sites] with lines like "vllm/FILE:FUNCTION" = "8MiB"',
    }
    return examples.get(key, f"{key} as a string")


def _limits(path: Path, table: Mapping[str, Any]) -> Limits:
    require = table.get("require")
    if require is not None and require not in GRADES:
        raise _wrong(path, f"require is {require!r}", f"Use one of {', '.join(GRADES)}.")
    ranks = table.get("ranks")
    if ranks is not None and ranks < 1:
        raise _wrong(path, f"ranks is {ranks}", "Give the number of workers, 1 or more.")
    return Limits(
        arena=_sizes(path, table.get("arena", {})),
        sites=_sizes(path, table.get("sites", {})),
        require=cast("Grade | None", require),
        ranks=ranks,
    )


def _sizes(path: Path, globs: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for glob, value in globs.items():
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _wrong(path, f"{glob!r} is {value!r}", 'Write a size such as "64MiB".')
        sizes[glob] = parse_bytes(str(value))
    return sizes


def _wrong(path: Path, what: str, hint: str) -> WstraceError:
    return WstraceError(f"[tool.wstrace] of {path}: {what}.", hint)
