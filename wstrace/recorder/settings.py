"""Settings of the recorder, read from the environment inside `register()`.

Each name also works as `VLLM_WSTRACE_*`, because Ray's older executor only hands `VLLM_*`
variables to its workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

GrowthPolicy = Literal["raise", "grow"]
ReservePolicy = Literal["fail", "skip"]

MAX_KEYS = 20_000


@dataclass(frozen=True)
class Settings:
    """What the recorder was asked to do in this process.

    `directory` is the trace folder (None: only a reserve is applied), `max_reserve` bytes.
    """

    directory: str | None
    run: str
    on_growth: GrowthPolicy = "raise"
    reserve: str | None = None
    reserve_policy: ReservePolicy = "fail"
    max_reserve: int | None = None
    check_views: bool = False
    max_keys: int = MAX_KEYS


def _choice(value: str, allowed: tuple[str, ...], default: str) -> str:
    return value if value in allowed else default


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `WSTRACE_*`; unknown values fall back to the defaults, never raise."""
    environ = os.environ if environ is None else environ

    def get(name: str, default: str = "") -> str:
        return environ.get(f"WSTRACE_{name}", environ.get(f"VLLM_WSTRACE_{name}", default))

    cap, keys = get("MAX_RESERVE"), get("MAX_KEYS")
    return Settings(
        directory=get("DIR") or None,
        run=get("RUN", "unnamed"),
        on_growth=cast(GrowthPolicy, _choice(get("ON_GROWTH"), ("raise", "grow"), "raise")),
        reserve=get("RESERVE") or None,
        reserve_policy=cast(
            ReservePolicy, _choice(get("RESERVE_POLICY"), ("fail", "skip"), "fail")
        ),
        max_reserve=int(cap) if cap.isdecimal() else None,
        check_views=get("CHECK_VIEWS") == "1",
        max_keys=int(keys) if keys.isdecimal() else MAX_KEYS,
    )
