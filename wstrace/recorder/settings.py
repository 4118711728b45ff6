"""Settings of the recorder, read from the environment inside `register()`.

Each name also works as `VLLM_WSTRACE_*`, because Ray's older executor only hands `VLLM_*`
variables to its workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from wstrace.errors import WstraceError
from wstrace.units import parse_bytes

GrowthPolicy = Literal["raise", "grow"]
ReservePolicy = Literal["fail", "skip"]

MAX_KEYS = 20_000
OFF = ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """What the recorder was asked to do in this process.

    `directory` is the trace folder (None: nothing is recorded), `max_reserve` bytes. `guard`:
    a locked arena may grow in production, by at most `guard_max` bytes on a rank (None: what
    is free, less a margin).
    `guard_file` is where its counters are written, if anywhere. `warn_at`: the share of an
    arena from which a site is near its limit (None: nobody asks). `not_understood`: settings
    of the guard that were given and are not used, in words.
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


def _choice(value: str, allowed: tuple[str, ...], default: str) -> str:
    return value if value in allowed else default


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `WSTRACE_*`; unknown values fall back to the defaults, never raise."""
    environ = os.environ if environ is None else environ

    def get(name: str, default: str = "") -> str:
        return environ.get(f"WSTRACE_{name}", environ.get(f"VLLM_WSTRACE_{name}", default))

    cap, keys = get("MAX_RESERVE"), get("MAX_KEYS")
    guard, most = get("GUARD").lower() not in OFF, get("GUARD_MAX")
    policy = "grow" if guard else _choice(get("ON_GROWTH"), ("raise", "grow"), "raise")
    return Settings(
        directory=get("DIR") or None,
        run=get("RUN", "unnamed"),
        on_growth=cast(GrowthPolicy, policy),
        reserve=get("RESERVE") or None,
        reserve_policy=cast(
            ReservePolicy, _choice(get("RESERVE_POLICY"), ("fail", "skip"), "fail")
        ),
        max_reserve=int(cap) if cap.isdecimal() else None,
        check_views=get("CHECK_VIEWS") == "1",
        max_keys=int(keys) if keys.isdecimal() else MAX_KEYS,
        guard=guard,
        guard_max=_size(most),
        guard_file=get("GUARD_FILE") or None,
        warn_at=share_of(get("WARN_AT")),
        not_understood=tuple(_not_understood(most, get("WARN_AT"))),
    )


def _not_understood(most: str, share: str) -> Iterator[str]:
    if most and _size(most) is None:
        yield f"WSTRACE_GUARD_MAX={most!r} is no size: write it as 2GiB, 512MiB or in bytes"
    if share and share_of(share) is None:
        yield f"WSTRACE_WARN_AT={share!r} is no share: write it as 0.9"


def share_of(text: str) -> float | None:
    """0.9 of `0.9`; None for nothing and for what is no share above 0 and up to 1."""
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


def _size(text: str) -> int | None:
    """Bytes of `2GiB` or `1048576`; None for nothing and for what is no size."""
    try:
        return parse_bytes(text)
    except WstraceError:
        return None
