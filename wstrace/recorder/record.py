"""`with wstrace.record(dir): LLM(...)`: the recorder from Python."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wstrace.errors import WstraceError
from wstrace.files import make_folder
from wstrace.recorder.settings import GrowthPolicy, ReservePolicy


def new_run_id() -> str:
    """UTC time and four random bytes: `20260516T101500Z-1a2b3c4d`."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}"


def make_trace_folder(path: Path) -> Path:
    """Create a trace folder, mode 0700; an existing one must be ours and no symlink.

    Raises WstraceError (exit 2) for a symlink, a file, or a folder that cannot be made.
    """
    if path.is_symlink():
        raise WstraceError(f"{path} is a symbolic link.", "Give a real folder with -o.")
    make_folder(path, 0o700)
    if not os.access(path, os.W_OK | os.X_OK):
        raise WstraceError(
            f"The trace folder {path} cannot be written.", "Give another one with -o."
        )
    return path


def environment(
    folder: Path,
    run: str,
    *,
    on_growth: GrowthPolicy = "raise",
    reserve: Path | None = None,
    reserve_policy: ReservePolicy = "fail",
    max_reserve: int | None = None,
    check_views: bool = False,
    warn_at: float | None = None,
) -> dict[str, str]:
    """The `WSTRACE_*` variables that attach the recorder to vLLM's processes."""
    values = {
        "WSTRACE_DIR": str(folder.resolve()),
        "WSTRACE_RUN": run,
        "WSTRACE_ON_GROWTH": on_growth,
    }
    if reserve is not None:
        values["WSTRACE_RESERVE"] = str(reserve.resolve())
        values["WSTRACE_RESERVE_POLICY"] = reserve_policy
    if max_reserve is not None:
        values["WSTRACE_MAX_RESERVE"] = str(max_reserve)
    if check_views:
        values["WSTRACE_CHECK_VIEWS"] = "1"
    if warn_at is not None:
        values["WSTRACE_WARN_AT"] = str(warn_at)
    return values


@contextmanager
def record(
    directory: str | os.PathLike[str],
    *,
    on_growth: GrowthPolicy = "raise",
    reserve: str | os.PathLike[str] | None = None,
    reserve_policy: ReservePolicy = "fail",
) -> Iterator[Path]:
    """Record every vLLM engine that is started inside the block.

    Works in-process (VLLM_ENABLE_V1_MULTIPROCESSING=0), and with forked or spawned engines,
    which inherit the settings. Yields the trace folder. Raises WstraceError when the folder
    cannot be used or a recorder is attached already.
    """
    # here, because `wstrace run` and --help only want what is above
    from wstrace.recorder.install import current, install, uninstall

    if current() is not None:
        raise WstraceError(
            "A recorder is attached to this process already.",
            "Leave the outer `wstrace.record` or `wstrace run` first.",
        )
    folder = make_trace_folder(Path(directory))
    values = environment(
        folder,
        new_run_id(),
        on_growth=on_growth,
        reserve=Path(reserve) if reserve is not None else None,
        reserve_policy=reserve_policy,
    )
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        install()
        yield folder
    finally:
        uninstall()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
