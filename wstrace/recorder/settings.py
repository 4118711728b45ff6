"""Settings of the recorder, read from the environment inside `register()`.

Each name also works as `VLLM_WSTRACE_*`, because Ray's older executor only hands `VLLM_*`
variables to its workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from wstrace.errors import WstraceError
from wstrace.units import count_of, parse_bytes

GrowthPolicy = Literal["raise", "grow"]
ReservePolicy = Literal["fail", "skip"]

T = TypeVar("T")

MAX_KEYS = 20_000
MOST_SHOWN = 200
"""Characters of a setting that is not understood, where it is told."""
OFF = ("", "0", "false", "no", "off")
PREFIXES = ("WSTRACE_", "VLLM_WSTRACE_")
"""How the variables begin; of two that say the same thing the first counts."""


def spellings(name: str) -> tuple[str, ...]:
    """`WSTRACE_NAME`, and its name with vLLM's prefix."""
    return tuple(prefix + name for prefix in PREFIXES)


def text_of(environ: Mapping[str, str], name: str, default: str = "") -> str:
    """What the variable says, under its own name or vLLM's prefix."""
    found = default
    for spelling in reversed(spellings(name)):
        found = environ.get(spelling, found)
    return found


@dataclass(frozen=True)
class Settings:
    """What the recorder was asked to do in this process.

    `directory` is the trace folder (None: nothing is recorded), `max_reserve` bytes. `guard`:
    a locked arena may grow in production, by at most `guard_max` bytes on a rank (None: what
    is free, less a margin).
    `guard_file` is where its counters are written, if anywhere. `warn_at`: the share of an
    arena from which a site is near its limit (None: nobody asks). `native`: the
    look-up in C where it is installed. `not_understood`: settings
    that were given and are not used, in words.
    """

    directory: str | None
    run: str
    on_growth: GrowthPolicy = "raise"
    reserve: str | None = None
    reserve_policy: ReservePolicy = "fail"
    max_reserve: int | None = None
    check_views: bool = False
    max_keys: int = MAX_KEYS
    guard: bool = False
    guard_max: int | None = None
    guard_file: str | None = None
    warn_at: float | None = None
    native: bool = True
    not_understood: tuple[str, ...] = ()

    @property
    def asks_nothing(self) -> bool:
        """Whether there is nothing to do in this process: `WSTRACE_GUARD=0` alone."""
        return not (self.records or self.reserve or self.guard)

    @property
    def records(self) -> bool:
        """Whether a trace is written."""
        return self.directory is not None

    @property
    def sees_steps(self) -> bool:
        """Whether anything looks at what the scheduler planned."""
        return self.records or self.warn_at is not None

    @property
    def grows(self) -> bool:
        """Whether an arena that vLLM has locked may grow."""
        return self.guard or self.on_growth == "grow"


class _Asked:
    """The settings as texts; what was given and is not understood is kept, to be told."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.wrong: list[str] = []

    def text(self, name: str, default: str = "") -> str:
        return text_of(self._environ, name, default)

    def read(self, name: str, reads: Callable[[str], T | None], kind: str) -> T | None:
        """What `reads` makes of it; None for nothing and for what is no `kind`."""
        text = self.text(name).strip()
        found = reads(text) if text else None
        if text and found is None:
            shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
            self.wrong.append(f"WSTRACE_{name}={shown!r} is {kind}")
        return found

    def choice(self, name: str, *allowed: str) -> str:
        """One of `allowed`; the first where nothing else was given."""
        names = " or ".join(allowed)
        found = self.read(name, lambda text: text if text in allowed else None, f"not {names}")
        return found or allowed[0]

    def switch(self, name: str, default: str = "") -> bool:
        """On for all but nothing and the words of OFF."""
        return self.text(name, default).strip().lower() not in OFF


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `WSTRACE_*`; unknown values fall back to the defaults, never raise."""
    asked = _Asked(os.environ if environ is None else environ)
    guard = asked.switch("GUARD")
    growth = asked.choice("ON_GROWTH", "raise", "grow")
    no_size = "no size: write it as 2GiB, 512MiB or in bytes"
    keys = asked.read("MAX_KEYS", count_of, "no number")
    return Settings(
        directory=asked.text("DIR") or None,
        run=asked.text("RUN", "unnamed"),
        on_growth=cast(GrowthPolicy, "grow" if guard else growth),
        reserve=asked.text("RESERVE") or None,
        reserve_policy=cast(ReservePolicy, asked.choice("RESERVE_POLICY", "fail", "skip")),
        max_reserve=asked.read("MAX_RESERVE", _size, no_size),
        check_views=asked.switch("CHECK_VIEWS"),
        max_keys=MAX_KEYS if keys is None else keys,
        guard=guard,
        guard_max=asked.read("GUARD_MAX", _size, no_size),
        guard_file=asked.text("GUARD_FILE") or None,
        warn_at=asked.read("WARN_AT", share_of, "no share: write it as 0.9 or 90%"),
        native=asked.switch("NATIVE", "1"),
        not_understood=tuple(asked.wrong),
    )


def share_of(text: str) -> float | None:
    """0.9 of `0.9` and of `90%`; None for what is no share above 0 and up to 1."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        return None
    return share if 0 < share <= 1 and not rest else None


def _size(text: str) -> int | None:
    """Bytes of `2GiB` or `1048576`; None for what is no size."""
    try:
        return parse_bytes(text)
    except WstraceError:
        return None
