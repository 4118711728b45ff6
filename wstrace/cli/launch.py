"""Run a command as a child: signals passed on, its exit code returned, always.

vLLM's own plugin entry point attaches the recorder, so the command line passes through
untouched and only the environment is added to.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from wstrace.errors import WstraceError

# Not passed on: what no process can catch, what a fault of this process raises, the child's own
# end, the terminal's stop (it stops this process, as a shell expects of a job), and SIGPIPE.
_OWN = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, signal.SIGPIPE),
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
    try:
        with _children_are_kept():
            pid = _spawn(command, env, before)
            with _other_threads_pass_on(pid):
                return _wait(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
def _other_threads_pass_on(pid: int) -> Iterator[None]:
    """A signal that another thread is given, because this one blocks it, is passed on too.

    Python runs a handler in the main thread, whichever thread the signal met. Who sent it is
    not known there: one of the terminal's is taken to have reached the child by itself.
    """

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number not in FROM_TERMINAL or not _in_foreground():
            _send(pid, number)

    if not _in_main_thread():
        yield
        return
    before = {number: _handle(number, pass_on) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def _handle(
    number: int, handler: Callable[[int, FrameType | None], None]
) -> Callable[[int, FrameType | None], object] | int | None:
    """Set a handler; returns the one before, None where it cannot be put back."""
    if signal.getsignal(number) is None:
        return None
    return signal.signal(number, handler)


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
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


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
