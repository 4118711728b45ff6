"""Run a command as a child: signals passed on, its exit code returned, always.

vLLM's own plugin entry point attaches the recorder, so the command line passes through
untouched and only the environment is added to.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from wstrace.errors import WstraceError, shell_code

# Not passed on: what no process can catch, what a fault of this process raises, the child's own
# end, the terminal's stop (it stops this process, as a shell expects of a job), and SIGPIPE.
# SIGCONT is: who tells a stopped command to end, as systemd does, sends it next.
_OWN = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP),
    *(signal.SIGABRT, signal.SIGSYS),
}
FORWARDED = frozenset(signal.valid_signals() - _OWN)
FROM_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH}
SI_USER = 0  # si_code: 0 and below was sent by a process, above by the kernel
# CPython ignores these two at its start, and an ignored signal stays so over exec.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
LOOK_EVERY_SECONDS = 0.2  # a lost SIGCHLD costs this much, not for ever


def run_child(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run `command` and return its exit code (128 + N when signal N ended it).

    A signal that somebody sends to wstrace alone is passed on; one from the terminal has
    reached the child already, because both stand in the same process group. Raises
    WstraceError (exit 2) when the command cannot be started, or when somebody else in this
    process waited for it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    child = _Child()
    try:
        with _children_are_kept(), _handled(child, ignored=False):
            child.started(_spawn(command, env, before))
            with _handled(child, ignored=True):
                return _wait(child.pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Child:
    """The command's process; a signal that comes before there is one waits for it."""

    def __init__(self) -> None:
        self.pid = 0
        self._early: list[int] = []

    def started(self, pid: int) -> None:
        self.pid = pid
        for number in self._early:
            _send(pid, number)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Handler of a signal that another thread was given, because the main one blocks it.

        Python runs it in the main thread. Who sent the signal is not known here: one of the
        terminal's is taken to have reached the child by itself.
        """
        if number in FROM_TERMINAL and _in_foreground():
            return
        if self.pid:
            _send(self.pid, number)
        else:
            self._early.append(number)


def _spawn(command: Sequence[str], env: Mapping[str, str], mask: set[int]) -> int:
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            dict(env),
            setsigmask=mask,
            setsigdef=IGNORED_BY_PYTHON,
        )
    except OSError as error:
        raise WstraceError(
            f"Cannot start {command[0]!r}: {error.strerror}.",
            "Check the command after `--`, and that it is on PATH.",
        ) from error


@contextmanager
def _children_are_kept() -> Iterator[None]:
    """Where the parent left SIGCHLD ignored the kernel drops a child's exit code."""
    if not _in_main_thread() or signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@contextmanager
def _handled(child: _Child, ignored: bool) -> Iterator[None]:
    """Set `child.pass_on` for the signals that are ignored now, or for those that are not.

    Apart because an ignored signal must still be ignored when the command starts (nohup),
    while any other could end this process by way of another thread from then on.
    """
    before = {
        number: handler
        for number in (FORWARDED if _in_main_thread() else ())
        if (handler := signal.getsignal(number)) is not None  # None: not set by Python
        and handler != child.pass_on
        and (handler is signal.SIG_IGN) is ignored
    }
    for number in before:
        signal.signal(number, child.pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _in_foreground() -> bool:
    """Whether the terminal's keys reach this process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _wait(pid: int) -> int:
    """A look every LOOK_EVERY_SECONDS: SIGCHLD only makes it sooner.

    Any thread that does not block SIGCHLD may be given it, and ignores it by default.
    """
    while True:
        done, status = _look(pid)
        if done:
            return exit_code(status)
        info = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, LOOK_EVERY_SECONDS)
        if info is None or info.si_signo == signal.SIGCHLD:
            continue
        if info.si_code <= SI_USER and info.si_pid not in (0, pid):
            _send(pid, info.si_signo)


def _look(pid: int) -> tuple[int, int]:
    try:
        return os.waitpid(pid, os.WNOHANG)
    except ChildProcessError as error:
        raise WstraceError(
            "The command ended, and its exit code went to another part of this process.",
            "Run it with `wstrace run` from a shell.",
        ) from error


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def exit_code(status: int) -> int:
    """A wait status as a shell would show it."""
    return shell_code(os.waitstatus_to_exitcode(status))


def still_living(run: str) -> list[str]:
    """`pid 41 (VLLM::EngineCore)` of each process that has this run's environment.

    Looked up in /proc by WSTRACE_RUN, which every process of the command inherits; empty
    where /proc cannot be read. A process that overwrote its environment is not found.
    """
    wanted = f"WSTRACE_RUN={run}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                title = (
                    (entry / "cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode("utf-8", "replace")
                )
                found.append(f"pid {entry.name} ({title.strip()[:60]})")
    return found
