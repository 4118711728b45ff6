"""`wstrace fix` on a stand-in: the loop, its ends, and going on after a cut."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import forked, wstrace
from wstrace.cli import outlet
from wstrace.cli.commands.fix import _ended_by_signals
from wstrace.cli.fixing.target import target_of
from wstrace.cli.launch import still_living
from wstrace.errors import WstraceError
from wstrace.exercise.corners import by_drivers
from wstrace.findings.analysed_run import load_run
from wstrace.testbed.engine import free_port

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = (sys.executable, "-m", "tests.processes.loop.stand_in", "serve", "m")
ENV = {k: v for k, v in os.environ.items() if not k.startswith(("WSTRACE", "VLLM"))}


@dataclass
class Done:
    """A fix that ended: exit code, screen, progress, its folder."""

    code: int
    out: str
    err: str
    folder: Path
    port: int

    def row(self, name: str) -> str:
        """The screen's lines under a name, joined."""
        kept, on = [], False
        for line in self.out.splitlines():
            on = line.startswith(f"{name} ") or (on and line.startswith(" "))
            kept += [line[11:]] * on
        return "\n".join(kept)


SLOW = pytest.mark.slow  # seconds each: two servers started and asked, twice


def start(
    folder: Path, *options: str, words: str = "", port: int = 0, more: Sequence[str] = ()
) -> subprocess.Popen[str]:
    return forked(
        *("fix", "-o", str(folder), *options),
        *("--", *STAND_IN, "--port", str(port or free_port()), *more),
        env=ENV | {"PYTHONPATH": str(ROOT), "STAND_IN": words},
    )


def fix(
    folder: Path, *options: str, words: str = "", port: int = 0, more: Sequence[str] = ()
) -> Done:
    """The command in this process; its servers are processes all the same."""
    port = port or free_port()
    server = (*STAND_IN, "--port", str(port), *more)
    done = wstrace(
        *("fix", "-o", str(folder), *options, "--", *server),
        PYTHONPATH=str(ROOT),
        STAND_IN=words,
    )
    for name in ("grown", "verified"):
        path = folder / name / "run.json"
        if path.exists():
            assert still_living(json.loads(path.read_text())["run"]) == []
    return Done(done.returncode, done.stdout, done.stderr, folder, port)


def test_a_server_that_dies_of_its_workspace_is_fixed_by_one_command(tmp_path: Path) -> None:
    done = fix(tmp_path / "f")
    assert done.code == 0, done.err
    assert done.row("result").startswith("Fixed: the same requests were answered.")
    # 2 buffers of 4 heads, 1,792 cached tokens and 64 float16; the bound: 2,048 tokens
    asked, need = 2 * 4 * 1792 * 64 * 2, 2 * 4 * 2048 * 64 * 2
    assert f"asked {asked / 2**20:.2f} MiB of 66.25 KiB" in done.row("found")
    assert f"can need {need / 2**20:.2f} MiB (proved)" in done.row("found")
    # 16 tokens in a block of 8,192 bytes
    assert f"{need // 8192 * 16:,} KV-cache tokens" in done.row("cost")
    reserve = yaml.safe_load((done.folder / "reserve.yaml").read_text())
    assert [slot["bytes"] for slot in reserve["slots"]] == [need]
    assert "layers that neither warm-up nor these requests reached" in done.row("open")
    line = done.row("production")
    assert line.startswith(f"WSTRACE_RESERVE={done.folder}/reserve.yaml {sys.executable} -m")
    assert "<html" in (done.folder / "report.html").read_text()
    assert "batch: 8 x 200" in done.err  # max_num_seqs of the stand-in
    assert load_run(done.folder / "grown").rests_on.command.endswith("exit code 0")


def test_nothing_to_fix_says_so_and_writes_no_reserve(tmp_path: Path) -> None:
    done = fix(tmp_path / "f", words="roomy")
    assert done.code == 0, done.err
    assert done.row("result").startswith("Nothing to fix, no reserve written. Clean: 2 sites")
    assert not (done.folder / "reserve.yaml").exists()
    assert done.row("production") == ""
    assert "earlier fix" not in done.out


def test_the_reserve_of_an_earlier_fix_stays_and_is_told_apart(tmp_path: Path) -> None:
    """Production may start with it; this server, which asks nothing, did not make it."""
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "reserve.yaml").write_text("kind: wstrace-reserve\n")
    done = fix(tmp_path / "f", words="quiet")
    assert (done.folder / "reserve.yaml").read_text() == "kind: wstrace-reserve\n"
    assert f"{done.folder}/reserve.yaml is of an earlier fix" in done.row("open")


def test_a_layer_that_never_asks_is_inconclusive_and_gets_no_reserve(tmp_path: Path) -> None:
    done = fix(tmp_path / "f", words="quiet")
    assert done.code == 3
    assert "no layer asked for workspace" in done.out
    assert done.row("next") == f"wstrace report {done.folder}/grown"  # not this command again
    assert not (done.folder / "reserve.yaml").exists()


def test_what_no_reserve_covers_stays_a_finding(tmp_path: Path) -> None:
    done = fix(tmp_path / "f", words="beyond,roomy")
    assert done.code == 1
    assert done.row("result").startswith("No reserve helps against this: ")
    assert "WS106" in done.row("found")
    assert done.row("next").startswith("wstrace explain WS106 ")
    assert not (done.folder / "reserve.yaml").exists()


def test_a_reserve_that_does_not_save_the_server_is_not_called_a_fix(tmp_path: Path) -> None:
    """A reserve is written; with it a layer's own scratch is refused."""
    done = fix(tmp_path / "f", words="beyond_reserve")
    assert done.code == 1
    assert done.row("result").startswith("Not fixed: the server died in corner")
    assert done.row("production") == ""
    assert done.row("next") == f"wstrace report {done.folder}/verified"


def test_without_a_lock_the_gate_decides_and_the_option_accepts_it(tmp_path: Path) -> None:
    done = fix(tmp_path / "f", words="unlocked")
    assert done.code == 3
    assert done.row("result").startswith("Not shown to be fixed: all 16 requests were answered")
    assert "no lock was seen" in done.row("open")
    accepted = fix(tmp_path / "g", "--allow-unlocked", words="unlocked")
    assert accepted.code == 0
    assert accepted.row("result").startswith("Fixed")


@pytest.fixture(scope="module")
def untried(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A fix that ended with its reserve written and not tried."""
    return fix(tmp_path_factory.mktemp("fix") / "f", "--no-verify")


def test_a_reserve_that_was_not_tried_is_no_fix(untried: Done) -> None:
    done = untried
    assert done.code == 3
    assert "not tried" in done.row("result")
    assert (done.folder / "reserve.yaml").exists()
    assert not (done.folder / "verified").exists()


def test_the_line_for_production_is_whole_and_has_no_secret(tmp_path: Path) -> None:
    """A shell reads it back as the command that was given, but for the key."""
    long = ["--speculative-config", json.dumps({"a": ["b c"] * 100})]
    folder, port = tmp_path / "a folder", free_port()
    done = fix(folder, "--no-verify", port=port, more=[*long, "--api-key", "sk-abcdefgh"])
    line, note = done.row("production").splitlines()
    command = [*STAND_IN, "--port", str(port), *long, "--api-key", "[redacted]"]
    assert shlex.split(line) == [f"WSTRACE_RESERVE={folder}/reserve.yaml", *command]
    assert "your own secret" in note
    assert "sk-abc" not in done.out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("leaves", 2, "the server exited with code 0"),
        ("dies", 3, "exited with code 1: warm-up ended with ImportError: no kernels"),
        ("no_memory", 2, "exited with code 1: torch.OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_a_command_that_never_serves_ends_in_two_lines(
    words: str, code: int, told: str, tmp_path: Path
) -> None:
    done = fix(tmp_path / "f", words=words)
    assert done.code == code
    assert done.out == ""
    said = done.err.splitlines()[-2:]
    assert said[0].startswith("wstrace: Before it was ready")
    assert told in said[0]
    assert f"{done.folder}/grown.log" in said[1]


def test_a_server_without_a_recorder_leads_to_doctor(tmp_path: Path) -> None:
    done = fix(tmp_path / "f", words="unrecorded")
    assert done.code == 3
    assert "the recorder never attached" in done.row("result")
    assert done.row("next") == "wstrace doctor"


def test_a_reserve_that_the_engine_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    done = fix(tmp_path / "f", words="refuses")
    assert done.code == 3
    (what, _) = done.err.splitlines()[-2:]
    assert what.endswith("code 1: a reserve was refused: 2.00 MiB are not free.")
    assert (done.folder / "reserve.yaml").exists()


def test_a_server_that_never_gets_ready_is_ended_when_time_is_up(tmp_path: Path) -> None:
    done = fix(tmp_path / "f", "--max-minutes", "0.05", words="hangs")
    assert done.code == 3
    assert "wstrace: Time was up after 0.05 minutes (--max-minutes)." in done.err
    assert "goes on from what was done" in done.err.splitlines()[-1]


def test_a_port_in_use_is_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = fix(tmp_path / "f", port=taken.getsockname()[1])
    assert done.code == 2
    assert "listens at" in done.err.splitlines()[-2]
    assert not list((tmp_path / "f").glob("grown/*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_the_next_fix_goes_on(
    number: signal.Signals, tmp_path: Path
) -> None:
    folder, port = tmp_path / "f", free_port()
    process = start(folder, words="slow_reserved", port=port)
    assert process.stderr is not None
    until(process, "starting again with the reserve", "ready;")
    process.send_signal(number)
    process.communicate()
    assert process.returncode == 128 + number
    assert nobody_listens(port)
    state = json.loads((folder / "fix.json").read_text())
    assert ("grown" in state, "verified" in state) == (True, False)
    done = fix(folder, port=port)
    assert done.code == 0
    assert "going on where the last one was cut" in done.err
    assert "growth allowed: all" in done.err
    assert "starting with growth allowed" not in done.err


@pytest.mark.parametrize(
    ("marks", "done_before"),
    [
        pytest.param(["starting with growth"], "", id="start", marks=SLOW),
        pytest.param(["ready;"], "", id="asked"),
        pytest.param(["growth allowed: all"], "grown", id="judged", marks=SLOW),
        pytest.param(["starting again"], "grown", id="second start", marks=SLOW),
        pytest.param(["starting again", "ready;"], "grown", id="asked again", marks=SLOW),
    ],
)
def test_a_fix_that_is_killed_leaves_no_server_and_goes_on(
    marks: list[str], done_before: str, tmp_path: Path
) -> None:
    folder, port = tmp_path / "f", free_port()
    process = start(folder, words="slow", port=port)
    until(process, *marks)
    process.kill()
    process.communicate()
    while not nobody_listens(port):  # its keeper ends it
        time.sleep(0.05)
    done = fix(folder, port=port)
    assert done.code == 0
    assert ("going on where" in done.err) == (done_before == "grown")
    assert ("starting with growth" in done.err) == (done_before == "")


@pytest.mark.parametrize("step", [pytest.param("starting again", marks=SLOW), "ready;"])
def test_a_server_that_somebody_kills_is_not_called_fixed(step: str, tmp_path: Path) -> None:
    """The OOM killer's SIGKILL, in the start with the reserve and while it is asked."""
    folder, port = tmp_path / "f", free_port()
    process = start(folder, words="slow", port=port)
    until(process, "starting again", *[step] * (step == "ready;"))
    while not (pids := server_of(port)):
        time.sleep(0.02)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 3, err
    assert "killed by SIGKILL" in err or "Not shown to be fixed" in out
    assert fix(folder, port=port).code == 0


def test_a_second_ctrl_c_ends_a_server_that_does_not_listen(tmp_path: Path) -> None:
    folder, port = tmp_path / "f", free_port()
    process = start(folder, words="deaf,hangs", port=port)
    until(process, "starting with growth")
    while nobody_listens(port):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    while "SIGINT: no" not in (folder / "grown.log").read_text():
        time.sleep(0.02)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert server_of(port) == []


def test_ctrl_c_in_the_middle_of_a_line_of_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler speaks while stderr's buffer is being written, which would refuse it."""

    interrupted: list[int] = []

    class Interrupted(io.FileIO):
        def write(self, data: Any) -> int:
            written = super().write(data)
            if not interrupted:
                signal.raise_signal(signal.SIGINT)
            return written

    file = Interrupted(tmp_path / "err", "w")
    stream = io.TextIOWrapper(io.BufferedWriter(file), line_buffering=True)
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(SystemExit) as ended, _ended_by_signals(lambda: interrupted.append(1)):
        outlet.say("ready; sending")
    assert (ended.value.code, interrupted) == (130, [1])
    stream.close()  # which writes the line again: its first write raised
    told = (tmp_path / "err").read_text().splitlines()
    assert told[0] == "ready; sending"
    assert told[1].startswith("wstrace: ending the server; ")


def server_of(port: int) -> list[int]:
    """The process ids of the stand-in that serves at a port."""
    wanted = ["serve", "m", "--port", str(port)]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_text().split("\0")[:-1]
            if words[-4:] == wanted and "--" not in words:
                found.append(int(entry.name))
    return found


def until(process: subprocess.Popen[str], *marks: str) -> None:
    """Read the progress until each mark was told, in order."""
    assert process.stderr is not None
    for mark in marks:
        for line in process.stderr:
            if mark in line:
                break
        else:
            raise AssertionError(f"it ended before it said {mark!r}")


def nobody_listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) != 0


def test_a_finished_fix_begins_anew_and_another_command_wants_another_folder(
    untried: Done,
) -> None:
    assert "going on" not in fix(untried.folder, "--no-verify", port=untried.port).err
    assert untried.code == 3
    other = fix(untried.folder, port=free_port())
    assert other.code == 2
    assert "holds the fix of another command" in other.err


def test_a_trace_that_is_gone_is_made_again(tmp_path: Path) -> None:
    folder, port = tmp_path / "f", free_port()
    process = start(folder, words="slow_reserved", port=port)
    until(process, "starting again with the reserve")
    process.send_signal(signal.SIGINT)
    process.communicate()
    shutil.rmtree(folder / "grown")
    done = fix(folder, "--no-verify", port=port)
    assert "starting with growth allowed" in done.err
    assert (folder / "reserve.yaml").exists()


def test_a_broken_state_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "fix.json").write_text('{"version": 1')
    done = fix(tmp_path / "f")
    assert done.code == 2
    assert "cannot be read" in done.err
    assert len(done.err.splitlines()) == 2


def test_an_older_reserve_is_kept(untried: Done, tmp_path: Path) -> None:
    text = (untried.folder / "reserve.yaml").read_text()
    assert "Impl._continuation_prefill" in text
    old = tmp_path / "old.yaml"
    old.write_text(text.replace("Impl._continuation_prefill", "Impl._elsewhere"))
    again = fix(tmp_path / "g", "--no-verify", "--merge", str(old))
    assert "Impl._elsewhere" in (again.folder / "reserve.yaml").read_text()


@pytest.mark.parametrize(
    ("cmd", "url"),
    [
        (["vllm", "serve", "m"], "http://127.0.0.1:8000"),
        (["vllm", "serve", "m", "--port", "81"], "http://127.0.0.1:81"),
        (["vllm", "serve", "m", "--port=82", "--host=0.0.0.0"], "http://127.0.0.1:82"),
        (["vllm", "serve", "m", "--host", "10.0.0.7"], "http://10.0.0.7:8000"),
        (["vllm", "serve", "m", "--host", "::1"], "http://[::1]:8000"),
        (["vllm", "serve", "m", "--ssl-certfile", "c.pem"], "https://127.0.0.1:8000"),
        (["vllm", "serve", "m", "--port", "1", "--port", "83"], "http://127.0.0.1:83"),
    ],
)
def test_where_a_command_serves(cmd: list[str], url: str) -> None:
    assert target_of(cmd, None).url == url
    assert target_of(cmd, "http://h:1").url == "http://h:1"


@pytest.mark.parametrize("cmd", [["--port", "x"], ["--port", "0"], ["--uds", "/s"]])
def test_a_place_that_cannot_be_asked_is_told(cmd: list[str]) -> None:
    with pytest.raises(WstraceError):
        target_of(["vllm", "serve", "m", *cmd], None)


def test_the_key_of_the_command_is_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "of-the-environment")
    assert target_of(["vllm", "serve", "m"], None).key == "of-the-environment"
    assert target_of(["vllm", "serve", "m", "--api_key", "k"], None).key == "k"


def test_further_corners_follow_what_the_sites_grow_with() -> None:
    assert by_drivers({"num_computed_tokens", "num_reqs"}, 2048, 8) == []
    (corner,) = by_drivers({"num_prefill_tokens"}, 2048, 8)
    assert [len(call.prompt) for call in corner.calls] == [1024] * 4
    assert len({call.prompt[0] for call in corner.calls}) == 4
    assert len(by_drivers({"something new"}, 2, 1)[0].calls) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "No command to fix"),
        (["--", "no-such-program-anywhere"], "No such command"),
        (["--on-growth", "grow", "--", "true"], "No such option: --on-growth"),
        (["-o", "", "--", "true"], "Empty value for -o"),
        (["--url", "ftp://x", "--", "true"], "Not a server's URL"),
        (["--merge", "no/such.yaml", "--", "true"], "no/such.yaml"),
    ],
)
def test_bad_usage_is_two_lines(words: list[str], told: str, tmp_path: Path) -> None:
    done = wstrace("fix", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2
    assert list(tmp_path.iterdir()) == []
