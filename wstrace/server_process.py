"""A server as a child in a process group of its own: started, waited for, ended with all it
started. Standard library only."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Self

from wstrace.errors import WstraceError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

LOG_TAIL_LINES: Final = 12
LOG_TAIL_BYTES: Final = 1 << 18
LONGEST_ERROR: Final = 300
STOP_SECONDS: Final = 20.0
STOP_TIMES: Final = 5
"""How many times as long a server may take to end while it works: one that spins is killed."""
IDLE_SHARE: Final = 0.01
"""Of one core: what a server computes that only waits."""
WAIT_SECONDS: Final = 10.0
READY_SECONDS: Final = 180.0
LONGEST_SECONDS: Final = 1800.0
# The last line of a traceback, and argparse's; a process label may stand before it.
# matches: "(EngineCore pid=7) ERROR 11-28 [core.py:9] torch.OutOfMemoryError: out of memory"
_ERROR: Final = re.compile(
    r"(?:^|[\])] )((?:[\w.]*(?:Error|Exception)|\S+: error): \S.*)$", re.MULTILINE
)
# vLLM 0.13.0 to 0.33.0: what its parent processes end with names or wraps the cause above
# matches: "RuntimeError: Engine core initialization failed. See root cause above."
_POINTS_UP: Final = re.compile(r"root cause|: Worker failed with error '")
# prctl(2): the signal that a process gets when the thread that started it ends.
_PR_SET_PDEATHSIG: Final = 1


class ServerProcess:
    """A command that serves; use it as a context manager. Output goes to the file `log`.

    Entering waits until it is `healthy` (`on_wait(seconds)` is called after 10, 20, 40 and so
    on) and raises `WstraceError` with the end of the log if it exits, if for `ready_seconds`
    neither its log grows nor its processes compute, or after `longest_seconds`: a start on a
    busy machine takes minutes, one that hangs stands still. Leaving stops it; no process of
    the group survives. One that `dies_with_parent` gets SIGTERM where the thread that started
    it ends (Linux).
    """

    log: Path
    env: Mapping[str, str]
    ready_seconds: float = READY_SECONDS
    longest_seconds: float = LONGEST_SECONDS
    on_wait: Callable[[float], None] | None = None
    dies_with_parent: bool = False
    process: subprocess.Popen[bytes] | None = None
    log_begins: int = 0

    @property
    def command(self) -> Sequence[str]:
        """The whole command line."""
        raise NotImplementedError

    def healthy(self) -> bool:
        """Whether it answers."""
        raise NotImplementedError

    @property
    def exit_code(self) -> int | None:
        """The command's exit code; None while it runs."""
        return self.process.poll() if self.process else None

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the command. Raises `WstraceError` where it cannot be run."""
        with open(self.log, "ab", opener=_private) as log:
            self.log_begins = log.tell()
            self.process = self._spawn(log)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                self.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_with_parent if self.dies_with_parent else _heed_sigint,
            )
        except OSError as error:
            raise WstraceError(
                f"Cannot start {self.command[0]!r}: {error.strerror}.",
                "Check the command, and that it is on PATH.",
            ) from error

    def wait_ready(self) -> None:
        """Return once it is healthy; `WstraceError` if it exits or stands still."""
        started = moved = time.monotonic()
        tell_at = WAIT_SECONDS
        seen = self._progress()
        while not self.healthy():
            now = time.monotonic()
            if self.exit_code is not None:
                raise self.failed(f"the server {how_ended(self.exit_code)}")
            if now - moved > self.ready_seconds:
                raise self.failed(f"the server stood still for {self.ready_seconds:.0f} s")
            if now - started > self.longest_seconds:
                raise self.failed(f"the server was not ready in {self.longest_seconds:.0f} s")
            if self.on_wait is not None and now - started > tell_at:
                tell_at *= 2
                self.on_wait(now - started)
            if (progress := self._progress()) != seen:
                seen, moved = progress, now
            time.sleep(0.2)

    def _progress(self) -> tuple[int, int]:
        """What changes while the server starts: its log's bytes, its processes' CPU ticks."""
        return self.log.stat().st_size, sum(map(cpu_ticks, self.processes()))

    def ended_within(self, seconds: float) -> str | None:
        """How it ended, in words; None where it still runs after `seconds`."""
        assert self.process
        with suppress(subprocess.TimeoutExpired):
            return how_ended(self.process.wait(seconds))
        return None

    def said(self) -> str:
        """The end of what it wrote to its log since it was started."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self.log_begins, size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def failed(self, what: str) -> WstraceError:
        """An error that says `what`, with the end of the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        return WstraceError(what, "\n".join(["The end of its log:", *lines]))

    def processes(self) -> dict[int, str]:
        """Process id to title (`VLLM::Worker...`) of all that live in the server's group."""
        assert self.process
        return {
            pid: title
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and (title := _title(pid := int(entry.name)))
            if _group(pid) == self.process.pid
        }

    def stop(self, seconds: float = STOP_SECONDS) -> int | None:
        """SIGINT, then SIGKILL to the group; returns the exit code.

        Killed is what for `seconds` writes nothing and computes next to nothing, or has not
        ended after STOP_TIMES as long: on a busy machine the end of a trace takes its time.
        """
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self._wait_while_it_works(seconds)
        finally:
            self._kill_group()
        return self.process.wait()

    def _wait_while_it_works(self, seconds: float) -> None:
        idle = seconds * IDLE_SHARE * os.sysconf("SC_CLK_TCK")
        log, ticks = self._progress()
        for _ in range(STOP_TIMES):
            if self.ended_within(seconds) is not None:
                return
            before = log, ticks
            log, ticks = self._progress()
            # fewer ticks than before: some of its processes have ended
            if log == before[0] and 0 <= ticks - before[1] <= idle:
                return

    def _kill_group(self) -> None:
        assert self.process
        while self.processes() or self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                break
            time.sleep(0.05)


def last_error(text: str) -> str:
    """The last error that a log states, on one line; "" for none.

    vLLM's parent processes end with errors of their own that only point at the cause above.
    """
    found = [error.strip() for error in _ERROR.findall(text)]
    causes = [error for error in found if not _POINTS_UP.search(error)] or found
    return one_line(causes[-1])[:LONGEST_ERROR] if causes else ""


def how_ended(code: int) -> str:
    """`exited with code 1`; `was killed by SIGKILL`."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"was killed by signal {-code}"


def _title(pid: int) -> str:
    """The command line of a live process, empty for one that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return text.replace(b"\0", b" ").decode(errors="replace").strip()


def _heed_sigint() -> None:
    """In the child: a shell's background job ignores SIGINT, and what it starts would too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _with_parent() -> None:
    """In the child: a parent that is killed must not leave a server behind."""
    _heed_sigint()
    end_with_parent()


def end_with_parent() -> None:
    """In a child: SIGTERM when the thread that started it ends, however it ends (Linux)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_libc: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def _private(path: str, flags: int) -> int:
    """A server's own words may hold what its users wrote: nobody else's to read."""
    return os.open(path, flags, 0o600)


def cpu_ticks(pid: int) -> int:
    """Clock ticks that a process has computed; 0 for one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # "7 (python3 -c) S 1 7 ...": utime and stime are the 12th and 13th after the name.
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
