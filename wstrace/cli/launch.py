"""Run a command as a child: signals forwarded, its exit code returned.

vLLM's own plugin entry point attaches the recorder, so the command line passes through
untouched and only the environment is added to.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

from wstrace.errors import WstraceError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_WAITED = {*FORWARDED, signal.SIGCHLD}
SI_USER = 0
ASK_SECONDS = 0.2


def run_child(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run `command` and return its exit code (128 + N when signal N ended it).

    A signal that somebody sends to wstrace alone is passed on; one from the terminal has
    reached the child already, because both stand in the same process group. Raises
    WstraceError (exit 2) when the command cannot be started.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)
    try:
        return _wait(_spawn(command, env, before))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spawn(command: Sequence[str], env: Mapping[str, str], mask: set[int]) -> int:
    try:
        return os.posix_spawnp(command[0], list(command), dict(env), setsigmask=mask)
    except OSError as error:
        raise WstraceError(
            f"Cannot start {command[0]!r}: {error.strerror}.",
            "Check the command after `--`, and that it is on PATH.",
        ) from error


def _wait(pid: int) -> int:
    """Signals may be late or lost (another thread can take SIGCHLD): the child is asked too."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return exit_code(status)
        info = signal.sigtimedwait(_WAITED, ASK_SECONDS)
        if info is None or info.si_signo == signal.SIGCHLD:
            continue
        if info.si_code <= SI_USER and info.si_pid not in (0, pid):
            os.kill(pid, info.si_signo)


def exit_code(status: int) -> int:
    """A wait status as a shell would show it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
