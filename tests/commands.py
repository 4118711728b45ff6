"""A wstrace command in this process, or in a fork of it: what a subprocess would give,
without its start."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from unittest.mock import patch

from wstrace.cli.app import main


def wstrace(*words: str, cwd: Path | None = None, **env: str) -> CompletedProcess[str]:
    """Exit code, stdout and stderr of `wstrace WORDS`; `env` is added."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        patch.object(sys, "argv", ["wstrace", *words]),
        patch.dict(os.environ, {"COLUMNS": "100", **env}),
        chdir(cwd or Path.cwd()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    number = code if isinstance(code, int) else int(code is not None)
    return CompletedProcess(words, number, out.getvalue(), err.getvalue())


def forked(*words: str, env: Mapping[str, str], cwd: Path | None = None) -> Popen[str]:
    """`wstrace WORDS` as a process of its own, with this environment and nothing more.

    It is a fork, which has imported already what a program imports for a third of a second;
    signals, streams, its exit and its children are those of a program. Its command line in
    /proc is the one of the tests.
    """
    return Popen(
        ["wstrace", *words],
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        cwd=cwd,
        preexec_fn=lambda: _as_a_program(words, env),
    )


def _as_a_program(words: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Between fork and exec, in the child: the command instead of the exec."""
    gc.freeze()  # no object of the parent's closes a number that is given anew below
    faulthandler.disable()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # with them the pipe that waits for the exec
    _signals_of_a_program()
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(env)
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    atexit._clear()
    sys.argv = ["wstrace", *words]
    os._exit(_exit_code(main))


def _signals_of_a_program() -> None:
    """As a new interpreter sets them: a fork has the handlers of the tests."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_IGN)


def _exit_code(work: Callable[[], object]) -> int:
    """What an interpreter ends with after `work`; its streams are written."""
    code: object = 0
    try:
        work()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return code if isinstance(code, int) else int(code is not None)
