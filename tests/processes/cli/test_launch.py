"""`wstrace run` ends when its command ends, with its exit code, whatever happens meanwhile."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import wstrace
from tests.unit.cli.test_run import ENV, run, start
from wstrace.cli.launch import exit_code

# Many children while a second thread, which blocks nothing, takes SIGCHLD away.
WITH_A_THREAD = """
import os, sys, threading
from wstrace.cli.launch import run_child
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()
codes = [run_child(["sh", "-c", f"exit {n}"], os.environ) for n in range(30)]
stop.set()
print(codes == list(range(30)))
"""
OFF_THE_MAIN_THREAD = """
import os, threading
from wstrace.cli.launch import run_child
codes = []
ask = lambda: codes.append(run_child(["sh", "-c", "exit 5"], os.environ))
thread = threading.Thread(target=ask)
thread.start(); thread.join()
print(codes == [5])
"""
# SIGTERM meets the thread that blocks nothing; the command must still get it.
SIGNAL_MEETS_A_THREAD = """
import os, signal, threading
from wstrace.cli.launch import run_child
threading.Thread(target=threading.Event().wait, daemon=True).start()
script = "trap 'exit 41' TERM; (kill -TERM $PPID) & while :; do sleep 0.05; done"
print(run_child(["sh", "-c", script], os.environ) == 41)
"""


@pytest.mark.parametrize("script", [WITH_A_THREAD, OFF_THE_MAIN_THREAD, SIGNAL_MEETS_A_THREAD])
def test_a_second_thread_cannot_make_it_wait_for_ever(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"


def test_a_parent_that_ignores_sigchld(tmp_path: Path) -> None:
    ours = f"{sys.executable} -m wstrace.cli.app run -q -o {tmp_path / 't'} -- sh -c 'exit 7'"
    for _ in range(3):
        done = subprocess.run(
            ["bash", "-c", f"trap '' CHLD; exec {ours}"], env=ENV, check=False
        )
        assert done.returncode == 7


@pytest.mark.parametrize(
    "name", ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGHUP", "SIGWINCH", "SIGQUIT", "SIGRTMIN"]
)
def test_every_signal_that_somebody_sends_is_passed_on(tmp_path: Path, name: str) -> None:
    number = int(getattr(signal, name))
    script = f"""
import signal, sys, time
signal.signal({number}, lambda *a: sys.exit(43))
print("ready", flush=True)
time.sleep(600)
"""
    process = start("-q", "-o", str(tmp_path / "t"), "--", sys.executable, "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 43


def test_a_command_that_stopped_itself_goes_on_when_it_is_told_to(tmp_path: Path) -> None:
    script = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *a: sys.exit(44))
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""
    process = start("-q", "-o", str(tmp_path / "t"), "--", sys.executable, "-c", script)
    assert process.stdout is not None
    stopped = int(process.stdout.readline())
    while Path(f"/proc/{stopped}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    process.communicate()
    assert process.returncode == 44


def test_the_command_gets_the_signals_that_python_ignores(tmp_path: Path) -> None:
    sh = ["sh", "-c", "grep SigIgn /proc/self/status"]
    _, ours, _ = run("-q", "-o", str(tmp_path / "t"), "--", *sh)
    ignored = int(ours.split()[1], 16)
    assert not any(ignored >> (n - 1) & 1 for n in (signal.SIGPIPE, signal.SIGXFSZ))


# What the command does to the trace before it exits with 9.
HARM = {
    "deleted": "rm -rf {folder}",
    "a file in its place": "rm -rf {folder}; touch {folder}",
    "no room": "{python} -c 'import os, resource as r;"
    ' r.prlimit(int(os.environ["WSTRACE_PARENT"]), r.RLIMIT_FSIZE, (0, 0))\'',
}


@pytest.mark.parametrize("harm", list(HARM))
@pytest.mark.parametrize("quiet", [True, False])
def test_the_exit_code_outlives_the_trace(tmp_path: Path, harm: str, quiet: bool) -> None:
    folder = tmp_path / "t"
    what = HARM[harm].format(folder=folder, python=sys.executable)
    script = f"export WSTRACE_PARENT=$PPID; {what}; exit 9"
    code, out, err = run(*["-q"] * quiet, "-o", str(folder), "--", "sh", "-c", script)
    assert code == 9
    assert out == ""
    assert "cannot write run.json" in err
    assert "exit code was 9" in err
    assert "Traceback" not in err
    assert "standard output" not in err


IN_A_READ_ONLY_FOLDER = """
from wstrace.recorder.settings import read_settings
from wstrace.recorder.state.output import TraceOutput
from wstrace.trace.records import Failure, Slot
TraceOutput(read_settings()).write(Failure(kind="arena", slot=Slot(), phase="serving"))
raise SystemExit(9)
"""


def _without_override() -> None:
    """A superuser's writes heed permissions: PR_CAPBSET_DROP of CAP_DAC_OVERRIDE."""
    ctypes.CDLL(None).prctl(24, 1)


def test_a_folder_that_turns_read_only_costs_the_trace_and_never_looks_clean(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t"
    script = f'chmod 500 {folder}; exec {sys.executable} -c "$SCRIPT"'
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "wstrace.cli.app",
            "run",
            "-o",
            str(folder),
            "--",
            "sh",
            "-c",
            script,
        ],
        env=ENV | {"SCRIPT": IN_A_READ_ONLY_FOLDER},
        preexec_fn=_without_override,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 9
    assert "recording stops, serving goes on" in done.stderr
    assert "its exit code was 9" in done.stderr
    assert "the recorder never attached, or could not write there" in done.stderr
    folder.chmod(0o700)
    assert wstrace("gate", str(folder)).returncode == 3


def test_a_folder_without_room_is_told_before_anything_starts(tmp_path: Path) -> None:
    ours = f"{sys.executable} -m wstrace.cli.app run -o {tmp_path / 't'} -- echo started"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 0; exec {ours} | cat"],
        env=ENV, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == ""
    assert done.stderr.startswith("wstrace: Cannot write run.json in ")
    assert len(done.stderr.splitlines()) == 2


def test_processes_that_outlive_the_command_are_named(tmp_path: Path) -> None:
    script = "sleep 20 </dev/null >/dev/null 2>&1 & echo $!; exit 3"
    code, out, err = run("-q", "-o", str(tmp_path / "t"), "--", "sh", "-c", script)
    os.kill(int(out), signal.SIGKILL)
    assert code == 3
    assert f"still live: pid {out.strip()} (sleep 20)" in err
    told = json.loads((tmp_path / "t" / "run.json").read_text())
    assert told["living"] == [f"pid {out.strip()} (sleep 20)"]
    assert told["exit_code"] == 3


def test_wait_statuses_as_a_shell_shows_them() -> None:
    assert exit_code(5 << 8) == 5
    assert exit_code(9) == 137
