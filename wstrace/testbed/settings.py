"""What the `WSTRACE_TESTBED*` variables ask for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

PATTERNS: Final[dict[str, str]] = {
    "continuation": "Continuation",
    "per_token": "PerToken",
    "decode_scratch": "DecodeScratch",
    "constant": "Constant",
    "persistent": "Persistent",
    "clean": "Clean",
}
PREFIX: Final = "WSTRACE_TESTBED"


@dataclass(frozen=True)
class Settings:
    """One field a variable: `WSTRACE_TESTBED` for `patterns`, else `WSTRACE_TESTBED_FIELD`.

    `patterns` are `module:Class` names; the sizes are bytes, requests and tokens.
    """

    patterns: tuple[str, ...]
    num_ubatches: int = field(default=1, metadata={"doc": "microbatch slots of the manager"})
    num_lanes: int = field(default=1, metadata={"doc": "lanes of the manager (from 0.28)"})
    serving_lane: int = field(default=0, metadata={"doc": "lane of requests after the lock"})
    warm_up_decodes: int = field(
        default=1, metadata={"doc": "requests of the decode batch that warm-up runs; 0: none"}
    )
    constant_bytes: int = field(
        default=8 * 2**20, metadata={"doc": "bytes that `constant` asks for"}
    )


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Read the settings. Raises `WstraceError` on an unknown pattern or a bad number."""
    names = [name.strip() for name in environ[PREFIX].split(",") if name.strip()]
    numbers = {
        entry.name: _number(variable, environ[variable])
        for entry in fields(Settings)
        if (variable := f"{PREFIX}_{entry.name.upper()}") in environ
    }
    return Settings(patterns=tuple(_location(name) for name in names), **numbers)


def _location(name: str) -> str:
    if ":" in name:
        return name
    if name not in PATTERNS:
        raise WstraceError(
            f"{PREFIX} names an unknown pattern: {name!r}",
            f"Use {', '.join(PATTERNS)}, or module:Class for one of your own.",
        )
    return f"wstrace.testbed.patterns:{PATTERNS[name]}"


def _number(variable: str, text: str) -> int:
    if not text.isdecimal():
        raise WstraceError(f"{variable} is {text!r}", "Give a whole number, 0 or more.")
    return int(text)
