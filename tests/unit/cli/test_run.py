"""`wstrace run`: the command untouched, signals forwarded, the exit code, run.json."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import forked, wstrace
from wstrace.trace.reader import load_trace

SECRET = "S3cr3tV4lue"
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("WSTRACE", "VLLM"))}


def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
    return forked("run", *arguments, env=ENV | env)


def run(*arguments: str, **env: str) -> tuple[int, str, str]:
    process = start(*arguments, **env)
    out, err = process.communicate()
    return process.returncode, out, err


def test_arguments_and_stdout_pass_through_untouched(tmp_path: Path) -> None:
    code, out, _ = run(
        "-o", str(tmp_path / "t"), "--",
        sys.executable, "-c", "import sys; print(sys.argv[1:])",
        "serve", "m", "-o", "x", "--port", "1", "--help", "--", "--reserve", "y",
    )  # fmt: skip
    assert code == 0
    expected = ["serve", "m", "-o", "x", "--port", "1", "--help", "--", "--reserve", "y"]
    assert out == f"{expected}\n"


@pytest.mark.parametrize("code", [0, 77])
def test_the_exit_code_is_the_commands(tmp_path: Path, code: int) -> None:
    command = [sys.executable, "-c", f"raise SystemExit({code})"]
    assert run("-o", str(tmp_path / "t"), "--", *command)[0] == code


def test_death_by_a_signal_is_told_as_a_shell_would(tmp_path: Path) -> None:
    command = ["sh", "-c", "kill -9 $$"]
    assert run("-o", str(tmp_path / "t"), "--", *command)[0] == 128 + 9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_sent_to_wstrace_reaches_the_command_once(tmp_path: Path, number: int) -> None:
    """The next signal comes after all copies of the first: with it the command ends."""
    script = f"""
import signal, sys, time
got, last = [], []
signal.signal({int(number)}, lambda *a: got.append(1))
signal.signal(signal.SIGUSR1, lambda *a: last.append(1))
print("ready", flush=True)
while not got: time.sleep(0.01)
print("got", flush=True)
while not last: time.sleep(0.01)
sys.exit(40 + len(got))
"""
    process = start("-q", "-o", str(tmp_path / "t"), "--", sys.executable, "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == "got\n"
    process.send_signal(signal.SIGUSR1)
    process.communicate()
    assert process.returncode == 41


def test_the_environment_attaches_the_recorder_and_never_sets_vllm_plugins(
    tmp_path: Path,
) -> None:
    show = "import os, json; print(json.dumps(dict(os.environ)))"
    command = [sys.executable, "-c", show]
    _, out, _ = run("-o", str(tmp_path / "t"), "--on-growth", "grow", "--", *command)
    env = json.loads(out)
    assert env["WSTRACE_DIR"] == str(tmp_path / "t")
    assert env["WSTRACE_ON_GROWTH"] == "grow"
    assert "VLLM_PLUGINS" not in env
    assert "VLLM_DEBUG_WORKSPACE" not in env


def test_a_set_vllm_plugins_gains_wstrace_and_that_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import os; print(os.environ['VLLM_PLUGINS'])"]
    _, out, err = run("-o", str(tmp_path / "t"), "--", *command, VLLM_PLUGINS="lora")
    assert out == "lora,wstrace\n"
    assert "compile cache key changes" in err


def test_run_json_tells_the_redacted_command_its_start_and_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(5)", "--api-key", SECRET]
    run("-o", str(tmp_path / "t"), "--", *command, HF_TOKEN=SECRET)
    path = tmp_path / "t" / "run.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    text = path.read_text()
    assert SECRET not in text
    found = json.loads(text)
    assert found["command"][-2:] == ["--api-key", "[redacted]"]
    assert found["exit_code"] == 5
    assert found["started"] <= found["ended"]


LOSES_ITS_END = """
import os, resource
from wstrace.recorder.settings import read_settings
from wstrace.recorder.state.output import TraceOutput
from wstrace.trace.records import Failure, Note, Slot
output = TraceOutput(read_settings())
output.write(Note(text="first"))
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for number in range(60):
    output.write(Note(text="x" * 100))
output.write(Failure(kind="arena", slot=Slot(), phase="serving"))
"""


def test_run_json_keeps_what_was_lost_also_where_the_file_goes(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    code, _, err = run("-o", str(folder), "--", sys.executable, "-c", LOSES_ITS_END)
    assert code == 0
    assert err.count("cannot write the trace") == 1
    (file,) = folder.glob("*.wst.jsonl")
    (lost,) = json.loads((folder / "run.json").read_text())["lost"]
    assert lost.startswith(f"{file.name}: records were lost: ")
    assert lost.endswith("vLLM refused a request after that")
    assert load_trace(folder).doubts == [lost]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    shorter = f"{file.name} had {len(whole):,} bytes when the command ended, and has "
    assert load_trace(folder).doubts[1].startswith(f"{shorter}{len(whole) - 1:,}: ")
    file.unlink()
    gone = f"{file.name} was there when the command ended, and is gone"
    assert load_trace(folder).doubts == [lost, gone]


def test_a_pipe_in_the_trace_folder_holds_no_run_up(tmp_path: Path) -> None:
    """`run` always ends: it reads the files that its command left."""
    code, _, err = run("-o", str(tmp_path), "--", "mkfifo", str(tmp_path / "x.wst.jsonl"))
    assert code == 0
    assert "x.wst.jsonl is no plain file" in err


def test_a_command_that_is_running_has_a_run_json_without_an_end(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo runs; exec sleep 600"]
    process = start("-q", "-o", str(tmp_path / "t"), "--", *command)
    path = tmp_path / "t" / "run.json"
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"  # before, a signal ends wstrace itself
    assert "exit_code" not in json.loads(path.read_text())
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert json.loads(path.read_text())["exit_code"] == 128 + signal.SIGTERM


def test_the_verdict_is_short_and_on_stderr(tmp_path: Path) -> None:
    _, out, err = run("-o", str(tmp_path / "t"), "--", "true")
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) <= 12
    assert "never attached" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No command to run"),
        (["--"], "No command to run"),
        (["--", "no-such-program-anywhere"], "No such command"),
        (["--max-reserve", "lots", "--", "true"], "Not a size"),
        (["--max-reserve", "1GiB", "--", "true"], "--max-reserve goes with --reserve"),
        (["--reserve-policy", "skip", "--", "true"], "--reserve-policy goes with --reserve"),
        (["--on-growht", "grow", "--", "true"], "No such option: --on-growht"),
        (["-o", "", "--", "true"], "Empty value for -o"),
        (["--reserve", "no/such.yaml", "--", "true"], "no/such.yaml"),
    ],
)
def test_bad_usage_is_two_lines_and_exit_2_and_nothing_runs(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = wstrace("run", "-o", str(tmp_path / "t"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2
    assert "Traceback" not in done.stderr


def test_a_symlink_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "real")
    done = wstrace("run", "-o", str(tmp_path / "t"), "--", "true")
    assert done.returncode == 2
    assert "symbolic link" in done.stderr
    assert list((tmp_path / "real").iterdir()) == []


def test_a_second_run_in_the_same_folder_keeps_the_first_ones_run_json(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    run("-q", "-o", str(folder), "--", sys.executable, "-c", "raise SystemExit(5)")
    first = json.loads((folder / "run.json").read_text())
    code, _, err = run("-o", str(folder), "--", "true")
    assert code == 0
    assert "never attached" in err
    kept = json.loads((folder / f"run.{first['run']}.json").read_text())
    assert kept == first
    assert json.loads((folder / "run.json").read_text())["run"] != first["run"]


def test_a_report_that_cannot_be_written_is_said_before_the_command_runs(
    tmp_path: Path,
) -> None:
    missing = str(tmp_path / "no" / "x.html")
    done = wstrace("run", "--report", missing, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No folder" in done.stderr


def test_a_traces_own_files_are_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    run("-q", "-o", str(folder), "--", "true")
    before = (folder / "run.json").read_bytes()
    done = wstrace("report", str(folder), "-o", str(folder / "run.json"))
    assert done.returncode == 2
    assert "part of a trace" in done.stderr
    assert (folder / "run.json").read_bytes() == before


def test_no_name_of_a_folder_reaches_the_terminal_raw(tmp_path: Path) -> None:
    folder = str(tmp_path / "t\x1b]0;x")
    code, _, err = run("-o", folder, "--", "rm", "-r", folder)
    assert code == 0
    assert "No such trace" in err
    assert "\x1b" not in err


def test_a_folder_that_is_no_trace_is_said(tmp_path: Path) -> None:
    done = wstrace("report", str(tmp_path))
    assert done.returncode == 2
    assert "holds no trace" in done.stderr
