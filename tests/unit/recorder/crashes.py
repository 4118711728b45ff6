"""Recording processes that are killed, crowded or kept from writing, under vLLM's own manager.

    scripts/crashes kills | processes | troubles | threads | ci [--times N] [--processes N]

kills: processes that record are sent SIGKILL at random moments; each tells a file of its own
what its server was answered, before and after each request. processes: many record into one
folder at once. troubles: recording is made impossible in one way after another, and serving
must answer as without the recorder. threads: eight ask at once.
ci: all of them, short. Prints one JSON line and exits 1 where a record was lost
or invented, or an answer differs. vLLM's manager is imported once; each process is a fork.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from tests.matrix.harness import Engine, ask, workspace
from tests.matrix.stand_ins import load_installed
from tests.unit.recorder import injection
from wstrace.errors import WstraceError
from wstrace.recorder import install
from wstrace.recorder.hooks import manager as _loaded
from wstrace.recorder.settings import Settings
from wstrace.trace.process_file import ProcessTrace
from wstrace.trace.reader import load_trace
from wstrace.trace.records import Failure, Request

ARENA: Final = 1 << 22
STEP: Final = 256
NOBODY: Final = 65534
assert _loaded  # imported before the forks


def engine() -> Engine:
    """An engine whose arena is locked at ARENA bytes."""
    script = {
        "profile_run": lambda: ask(ARENA),
        "capture_model": lambda: workspace().lock_workspace(),
    }
    return Engine(script).start()


def forked(work: Callable[[], object], errors: Path) -> int:
    """The pid of a child that does `work` and leaves; its stderr goes to a file."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def sizes(number: int) -> Iterator[int]:
    """The request of each turn: every eighth is larger than the lock allows."""
    for turn in range(number):
        yield ARENA + STEP * (turn + 1) if turn % 8 == 7 else STEP * (turn + 1)


def tell(handle: int, word: str, size: int) -> None:
    os.write(handle, f"{word} {size}\n".encode())


def serve(folder: Path, told: Path, number: int) -> None:
    """Record `number` requests; `told` gets each before it is made and after its answer."""
    install.install(Settings(str(folder), "crash"))
    engine()
    handle = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for size in sizes(number):
        tell(handle, "asks", size)
        with suppress(AssertionError):
            ask(size)
        tell(handle, "had", size)


def compare(process: ProcessTrace | None, told: Path) -> dict[str, Any]:
    """Requests that were answered and are in no record; records of what was never asked."""
    words = [line.split() for line in told.read_text().splitlines()] if told.exists() else []
    asked = {int(size) for word, size in words if word == "asks"}
    had = {int(size) for word, size in words if word == "had"}
    records = process.records if process else []
    seen = {r.bytes for r in records if isinstance(r, Request) and r.phase == "serving"}
    refused = {r.required for r in records if isinstance(r, Failure)}
    lost = (had - seen) | ({size for size in had if size > ARENA} - refused)
    invented = (seen - asked) | {s for s in refused if s is not None and s not in asked}
    return {"had": len(had), "lost": sorted(lost), "invented": sorted(invented)}


def by_pid(folder: Path) -> dict[int, ProcessTrace]:
    found = load_trace(folder).processes if any(folder.glob("*.jsonl")) else []
    return {process.header.pid: process for process in found}


def kills(folder: Path, times: int, processes: int) -> dict[str, Any]:
    """SIGKILL after the start, at a random moment of the next 50 ms; `times` rounds."""
    total: dict[str, Any] = {"rounds": times, "had": 0, "lost": [], "invented": [], "torn": 0}
    chance = random.Random(20)
    for number in range(times):
        here = folder / str(number)
        trace = here / "trace"
        trace.mkdir(mode=0o700, parents=True)
        tolds = [here / f"told.{n}" for n in range(processes)]
        pids = [forked(partial(serve, trace, told, 12_000), here / "err") for told in tolds]
        _wait(partial(_all_serve, tolds), pids)
        time.sleep(chance.random() * 0.05)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
        found = by_pid(trace)
        for pid, told in zip(pids, tolds, strict=True):
            one = compare(found.get(pid), told)
            total["had"] += one["had"]
            total["lost"] += one["lost"]
            total["invented"] += one["invented"]
            total["torn"] += bool(found.get(pid) and found[pid].cut)
        shutil.rmtree(here)
    return total


def _all_serve(tolds: list[Path]) -> bool:
    return all(told.exists() and told.stat().st_size for told in tolds)


def _wait(until: Callable[[], bool], pids: list[int]) -> None:
    """As long as all of the processes live; they stay to be waited for."""
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not until():
        if any(os.waitid(os.P_PID, pid, look) for pid in pids):
            raise ChildProcessError("a recording process ended before it served")
        time.sleep(0.002)


def crowd(folder: Path, processes: int) -> dict[str, Any]:
    """Many processes record into one folder to their end."""
    trace = folder / "trace"
    trace.mkdir()
    tolds = [folder / f"told.{n}" for n in range(processes)]
    pids = [forked(partial(serve, trace, told, 40), folder / "err") for told in tolds]
    codes = [os.waitpid(pid, 0)[1] for pid in pids]
    found = by_pid(trace)
    each = [compare(found.get(pid), told) for pid, told in zip(pids, tolds, strict=True)]
    return {
        "processes": processes,
        "codes": sorted(set(codes)),
        "files": len(list(trace.glob("*.jsonl"))),
        "had": sum(one["had"] for one in each),
        "lost": [size for one in each for size in one["lost"]],
        "invented": [size for one in each for size in one["invented"]],
    }


def _failing_writes(number: int) -> Callable[[Path], None]:
    """From now on os.write, on files, writes half of what it gets and raises this errno."""
    real = os.write

    def write(handle: int, data: bytes) -> int:
        if handle <= 2:
            return real(handle, data)
        real(handle, data[: len(data) // 2])
        raise OSError(number, os.strerror(number))

    return lambda folder: setattr(os, "write", write)


def _few_files(folder: Path) -> None:
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    handles = [os.open("/dev/null", os.O_RDONLY) for _ in range(used + 1)]
    limit = max(handles) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def _read_only(folder: Path) -> None:
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(NOBODY)


def _of_another_user(folder: Path) -> None:
    """Mode 0700, and not ours: what a second user meets in the folder of the first."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    else:
        folder.chmod(0)


def _small_files(folder: Path) -> None:
    largest = max([f.stat().st_size for f in folder.glob("*.jsonl")], default=100)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does at its start
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 10, largest + 10))


TROUBLES: Final[dict[str, Callable[[Path], None]]] = {
    "no space": _failing_writes(errno.ENOSPC),
    "input/output error": _failing_writes(errno.EIO),
    "file size limit": _small_files,
    "read-only folder": _read_only,
    "another user's folder": _of_another_user,
    "deleted folder": lambda folder: shutil.rmtree(folder),
    "no descriptor left": _few_files,
}


def troubles(folder: Path, wanted: list[str]) -> dict[str, Any]:
    """What serving answered and what stands in the trace, for each trouble, before the engine
    starts and after: `answers` is whether vLLM answered as alone."""
    told = {}
    for name, begin in TROUBLES.items():
        for late in (False, True):
            label = f"{name}, {'in serving' if late else 'before the start'}"
            here = folder / label.replace(" ", "-").replace("/", "-")
            told[label] = _trouble(here, begin, late)
            told[label]["answers"] = told[label]["answers"] == wanted
    return told


def _trouble(here: Path, begin: Callable[[Path], None], late: bool) -> dict[str, Any]:
    trace = here / "trace"
    trace.mkdir(parents=True)
    result, handle = os.pipe()

    def work() -> None:
        install.install(Settings(str(trace), "trouble"))
        if not late:
            begin(trace)
        engine = injection.start()
        if late:
            begin(trace)
        answers = injection.serve(engine)
        os.writev(handle, [json.dumps(answers).encode()])  # os.write may be the trouble

    pid = forked(work, here / "err")
    os.close(handle)
    os.waitpid(pid, 0)
    if trace.exists():
        trace.chmod(0o700)
    answers = os.read(result, 1 << 16)
    os.close(result)
    errors = (here / "err").read_text()
    return {
        "answers": json.loads(answers or b"[]"),
        "said": [line for line in errors.splitlines() if line.startswith("wstrace: ")],
        "doubts": _doubts(trace),
    }


def _doubts(trace: Path) -> list[str]:
    """What keeps the trace from being called clean."""
    if not any(trace.glob("*.jsonl")):
        return ["no trace file"]
    try:
        return load_trace(trace).doubts
    except WstraceError as error:
        return [error.message]


def threads(folder: Path) -> dict[str, Any]:
    """Eight threads ask at once, each for sizes of its own."""
    trace, told = folder / "trace", folder / "told"
    trace.mkdir()

    def work() -> None:
        install.install(Settings(str(trace), "threads"))
        engine()

        def ask_many(number: int) -> None:
            for turn in range(50):
                ask(STEP * (1 + turn * 8 + number))

        several = [threading.Thread(target=ask_many, args=(n,)) for n in range(8)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
        told.write_text("done")

    os.waitpid(forked(work, folder / "err"), 0)
    (process,) = load_trace(trace).processes
    seen = [r.bytes for r in process.records if isinstance(r, Request) and r.phase == "serving"]
    return {"done": told.exists(), "asked": 400, "recorded": len(seen), "kinds": len(set(seen))}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["kills", "processes", "troubles", "threads", "ci"])
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    load_installed()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        folder.chmod(0o755)
        found = measured(options.what, folder, options.times, options.processes)
    print(json.dumps(found))
    return int(any(_wrong(one) for one in found.values()))


def _wrong(found: dict[str, Any]) -> bool:
    """Whether a record was lost or invented, or vLLM answered otherwise."""
    parts = [found, *(part for part in found.values() if isinstance(part, dict))]
    return any(
        part.get("lost") or part.get("invented") or part.get("answers") is False
        for part in parts
    )


def measured(what: str, folder: Path, times: int, processes: int | None) -> dict[str, Any]:
    """The results by name; `ci` is all of them, short."""
    plain = injection.alone()  # also imports, before the forks, what an engine needs
    made: dict[str, Callable[[Path], dict[str, Any]]] = {
        "kills": lambda f: kills(f, times, processes or 4),
        "processes": lambda f: crowd(f, processes or 64),
        "troubles": lambda f: troubles(f, plain),
        "threads": threads,
    }
    if what == "ci":
        made["processes"] = lambda f: crowd(f, processes or 6)
    found = {}
    for name, run in made.items():
        if what in (name, "ci"):
            (folder / name).mkdir()
            found[name] = run(folder / name)
    return found


if __name__ == "__main__":
    sys.exit(main())
