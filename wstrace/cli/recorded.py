"""What stands beside a recorded command: run.json at its start and end, and what it left."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

import wstrace
from wstrace.cli.checkup import lets_in
from wstrace.cli.launch import still_living
from wstrace.cli.outlet import say
from wstrace.errors import WstraceError
from wstrace.file_names import RUN_FILE, kept_run_file
from wstrace.files import write_whole
from wstrace.safe_texts.redact import redact_argv
from wstrace.trace.reader import lost_tails, sizes_of
from wstrace.trace.run_file import RunFile, read_run
from wstrace.versions import installed_vllm, package_version
from wstrace.vllm.command_line import config_words

LINGER_SECONDS: Final = 2.0  # vLLM's engine ends a moment after its server

# matches: "nightly-2026-05-16"
_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def plugins() -> dict[str, str]:
    """VLLM_PLUGINS is an allow list: add to it when set, never set it.

    vLLM keys its compile cache on it, so a changed value compiles the model again.
    """
    listed = os.environ.get("VLLM_PLUGINS")
    if lets_in(listed):
        return {}
    say("wstrace: adding wstrace to VLLM_PLUGINS; vLLM's compile cache key changes with it.")
    return {"VLLM_PLUGINS": ",".join([*filter(None, (listed or "").split(",")), "wstrace"])}


def versions() -> dict[str, str]:
    """The versions of Python, vLLM and PyTorch here, as far as they are installed."""
    found = {"vllm": installed_vllm(), "torch": package_version("torch")}
    here = {"python": sys.version.split()[0]}
    return here | {name: version for name, version in found.items() if version is not None}


def require_program(program: str) -> None:
    """WstraceError where there is no such program to start."""
    if shutil.which(program) is None:
        raise WstraceError(
            f"No such command: {program!r}.", "Check the command after `--`, and PATH."
        )


def given_run_id(text: str) -> str:
    """A run's id that a person gives; WstraceError where no file could be named by it."""
    if _RUN_ID.fullmatch(text) is None:
        raise WstraceError(
            f"--run-id {text}: not a run id.",
            "Letters, digits, - and _ (at most 100): the same for every command of a launch.",
        )
    return text


def refuse_other_command(folder: Path, run: str) -> None:
    """WstraceError where another command of the same launch has its run.json in `folder`: how
    each ended must stay."""
    there = _earlier(folder / RUN_FILE)
    if there is not None and there.run == run:
        raise WstraceError(
            f"{folder} is the folder of another command of run {run}.",
            "Give each its own with -o; `wstrace gather` and `wstrace gate` join them.",
        )


def begin(
    folder: Path, run: str, cmd: list[str], on_growth: str, reserve: Path | None
) -> RunFile:
    """Write the run.json of a command that is about to start.

    Raises WstraceError where it cannot be written: then nothing should be started.
    """
    started = RunFile(
        run=run,
        command=redact_argv(cmd),
        started=_now(),
        wstrace=wstrace.__version__,
        on_growth=on_growth,
        reserve=reserve.name if reserve else None,
        versions=versions(),
        config=redact_argv(config_words(cmd)),
    )
    try:
        _write(folder, started)
    except OSError as error:
        raise WstraceError(
            f"Cannot write {RUN_FILE} in {folder}: {error.strerror or error}.",
            "Nothing was started. Give a folder with free space with -o.",
        ) from error
    return started


def finish(folder: Path, started: RunFile, code: int, living: list[str]) -> None:
    """Write how it ended. Raises OSError where that cannot be written."""
    ended = msgspec.structs.replace(
        started,
        ended=_now(),
        exit_code=code,
        living=living,
        lost=lost_tails(folder, started.run),
        sizes=sizes_of(folder, started.run),
    )
    _write(folder, ended)


def left_behind(run: str) -> list[str]:
    """The command's processes that still live after it ended; they get LINGER_SECONDS to go."""
    deadline = time.monotonic() + LINGER_SECONDS
    while (living := still_living(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return living


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(folder: Path, run: RunFile) -> None:
    """run.json, whole or not at all, 0600; an earlier run's becomes run.ID.json."""
    path = folder / RUN_FILE
    earlier = _earlier(path)
    if earlier is not None and earlier.run != run.run:
        path.rename(folder / kept_run_file(earlier.run))
    data = msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"
    write_whole(data, path, 0o600)


def _earlier(path: Path) -> RunFile | None:
    """The run.json that stands there; a broken one has nothing to keep."""
    try:
        return read_run(path)
    except WstraceError:
        return None
