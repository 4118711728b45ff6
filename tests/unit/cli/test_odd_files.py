"""Every path that a command opens on somebody's word: a FIFO without a writer, a socket, a
folder, text of other systems. Two lines or read rightly, and never a hang."""

from __future__ import annotations

import os
import signal
import socket
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.unit.gate.traces import clean
from wstrace.audit import vllm_tree
from wstrace.cli.app import main
from wstrace.cli.watch.metrics import MetricsServer
from wstrace.cli.watch.tail import FileTail
from wstrace.errors import WstraceError
from wstrace.gate.baseline import read_baseline
from wstrace.gate.gate_config import read_config
from wstrace.plain_files import TooLargeError, open_plain, read_plain
from wstrace.reserve import reader
from wstrace.trace.run_file import read_run
from wstrace.vllm import arena
from wstrace.vllm.model_config import read_model_config

SAMPLES = Path(__file__).parents[3] / "sample_traces"
WAYS = {
    "report": ["report", "{}"],
    "diff": ["diff", "trace", "{}"],
    "reserve": ["reserve", "{}"],
    "reserve --merge": ["reserve", "trace", "--merge", "{}"],
    "gate": ["gate", "{}"],
    "gate --baseline": ["gate", "trace", "--baseline", "{}"],
    "gate --config": ["gate", "trace", "--config", "{}"],
    "gate --write-baseline": ["gate", "trace", "--write-baseline", "{}"],
    "triage": ["triage", "{}"],
    "triage --model-config": ["triage", "log.txt", "--model-config", "{}"],
    "bound --model-config": ["bound", "num_heads", "--model-config", "{}"],
    "audit --vllm": ["audit", "--vllm", "{}"],
    "audit --trace": ["audit", "--trace", "{}"],
    "watch": ["watch", "{}", "--once"],
    "export": ["export", "{}", "--format", "prometheus"],
    "export --torch-trace": ["export", "trace", "--format", "perfetto", "--torch-trace", "{}"],
    "gather": ["gather", "{}", "-o", "gathered"],
    "run --reserve": ["run", "-q", "-o", "new", "--reserve", "{}", "--", "true"],
    "fix --merge": ["fix", "-o", "fixed", "--merge", "{}", "--", "true"],
}


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with one of each kind, and a trace."""
    clean(tmp_path / "trace")
    (tmp_path / "log.txt").write_text("ERROR x\n")
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(tmp_path)  # a socket's name has 107 bytes
        made.bind("socket")
        os.chdir(before)
    return tmp_path


@pytest.mark.parametrize("name", WAYS)
def test_a_fifo_that_nobody_writes_to_is_told(
    name: str,
    odd: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(odd)
    words = [word.format("fifo.yaml") for word in WAYS[name]]
    monkeypatch.setattr(sys, "argv", ["wstrace", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err.splitlines()
    assert ended.value.code == (1 if name == "gather" else 2)
    assert len(told) == (1 if name == "gather" else 2), told
    assert "internal error" not in told[0]
    assert Path("fifo.yaml").is_fifo()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fifo.yaml", "FIFO"),
        ("folder", "folder"),
        ("socket", "No"),
        ("/dev/zero", "device"),
    ],
)
def test_only_plain_files_are_opened(name: str, why: str, odd: Path) -> None:
    with pytest.raises(OSError, match=why) as raised:
        open_plain(odd / name)
    assert raised.value.strerror
    assert not [f for f in os.listdir("/proc/self/fd") if _leads_to(f, odd / name)]


def _leads_to(descriptor: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    except OSError:
        return False


def test_what_a_shell_opened_is_read_to_its_end_and_dev_null_is_empty(tmp_path: Path) -> None:
    """`--baseline <(command)`: the writer may be slower than we are."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.write(writing, b"half, ")
        signal.alarm(5)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        signal.sigtimedwait([signal.SIGUSR1], 0.1)
        os.write(writing, b"and the rest")
        os._exit(0)
    os.close(writing)
    assert read_plain(f"/dev/fd/{reading}", 100) == b"half, and the rest"
    os.waitpid(child, 0)
    os.close(reading)
    assert read_plain("/dev/null", 1) == b""
    (tmp_path / "four").write_bytes(b"1234")
    assert read_plain(tmp_path / "four", 4) == b"1234"
    with pytest.raises(TooLargeError, match="larger than 3 B"):
        read_plain(tmp_path / "four", 3)


TEXTS = {
    "a mark in front": lambda text: b"\xef\xbb\xbf" + text,
    "line ends of another system": lambda text: text.replace(b"\n", b"\r\n"),
}
BAD = {
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "NUL bytes": lambda text: b"\0" * 100 + text,
}
BASELINE = b'{"code": "WS102", "site": "a.py:f", "slot": "main", "bytes": 7}\n'
CONFIG = b'[tool.wstrace]\nbaseline = "b.json"\n'
MODEL = b'{"num_attention_heads": 8,\n"hidden_size": 1024}\n'
RESERVE = (SAMPLES / "demo-grow/reserve.yaml").read_bytes()
READERS = {
    "baseline": (BASELINE, read_baseline),
    "config": (CONFIG, read_config),
    "model config": (MODEL, lambda path: read_model_config(path, {})),
    "reserve": (RESERVE, reader.load_reserve),
}


@pytest.mark.parametrize("reads", READERS)
@pytest.mark.parametrize("change", TEXTS)
def test_text_of_another_system_is_read(reads: str, change: str, tmp_path: Path) -> None:
    text, read = READERS[reads]
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "changed").write_bytes(TEXTS[change](text))
    wanted = read(tmp_path / "plain")
    assert wanted
    found = read(tmp_path / "changed")
    assert str(found).replace("changed", "plain") == str(wanted)


@pytest.mark.parametrize("reads", READERS)
@pytest.mark.parametrize("change", BAD)
def test_what_is_no_text_is_told(reads: str, change: str, tmp_path: Path) -> None:
    text, read = READERS[reads]
    (tmp_path / "changed").write_bytes(BAD[change](text))
    with pytest.raises(WstraceError, match="changed") as raised:
        read(tmp_path / "changed")
    assert "\n" not in raised.value.message
    assert raised.value.hint


def test_a_run_file_with_a_mark_is_read(tmp_path: Path) -> None:
    plain = SAMPLES / "demo-crash/run.json"
    (tmp_path / "run.json").write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert read_run(tmp_path / "run.json") == read_run(plain)
    assert read_run(plain) is not None


def test_counters_of_a_guard_that_cannot_be_read_are_told_and_the_rest_is_served(
    tmp_path: Path,
) -> None:
    """A scrape must not wait for them, nor end at them."""
    (tmp_path / "guard-rank0.prom").write_text("# TYPE a_total counter\na_total 3 1e999\n")
    os.mkfifo(tmp_path / "guard-rank1.prom")
    (tmp_path / "guard-rank2.prom").write_bytes(b"\0\xff")
    (tmp_path / "guard-rank3.prom").mkdir()
    with (tmp_path / "guard-rank4.prom").open("wb") as hole:
        hole.truncate(1 << 40)
    (tmp_path / "guard-rank5.prom").write_text(f"a_total 3 {'9' * 400}\n")  # a time
    with closing(MetricsServer(None, None, tmp_path / "guard.prom", "127.0.0.1:0")) as server:
        server.refresh()
        served = urlopen(f"http://127.0.0.1:{server.port}/metrics").read()
    assert served == b"# HELP a_total \n# TYPE a_total counter\na_total 3.0\n"
    assert "cannot read" in server.doubt


def test_a_line_that_never_ends_is_not_kept(tmp_path: Path) -> None:
    trace = tmp_path / "x.wst.jsonl"
    with trace.open("wb") as hole:
        hole.truncate(40 << 20)
    tail = FileTail(trace)
    assert list(tail.read()) == []
    assert len(tail.rest) < 17 << 20
    with trace.open("ab") as file:
        file.write(b"\n")
    assert list(tail.read()) == []
    assert tail.unread == 1


def test_a_tree_with_a_fifo_among_its_sources_is_read(tmp_path: Path) -> None:
    root = tmp_path / "vllm"
    (root / "v1/worker").mkdir(parents=True)
    (root / arena.FILE).write_text("class WorkspaceManager: pass\n")
    os.mkfifo(root / "odd.py")
    os.mkfifo(root / "_version.py")
    (tmp_path / "vllm-1.dist-info").mkdir()
    os.mkfifo(tmp_path / "vllm-1.dist-info/METADATA")
    with vllm_tree.vllm_tree(str(tmp_path)) as tree:
        assert tree.version == ""


def test_a_wheel_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_tree, "_LARGEST", 1000)
    wheel = tmp_path / "vllm-0.33.0-py3.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("vllm/a.py", "#" * 1001)
    with pytest.raises(WstraceError, match="larger than"):
        vllm_tree.unpack(wheel, tmp_path / "out")
