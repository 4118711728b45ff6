"""`wstrace gate` as a process would be told: exit codes, one test a situation of issue 7."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gate import traces
from tests.unit.gate.conftest import Gate
from wstrace.trace.records import Ranks


def _two_ranks(make: Callable[..., Path]) -> Callable[[Path], Path]:
    return lambda folder: make(folder, world=Ranks(dp=1, tp=2, pp=1))


def _never_attached(folder: Path) -> Path:
    folder.mkdir()
    (folder / "run.json").write_text('{"run":"r","command":[],"started":"","wstrace":"0.1.0"}')
    return folder


def _broken_run_file(folder: Path) -> Path:
    traces.clean(folder)
    (folder / "run.json").write_text('{"run":"r","command":["vllm"')
    return folder


def _only_the_api_server(folder: Path) -> Path:
    traces.Run(folder).process()
    return folder


SITUATIONS = [
    pytest.param(traces.clean, 0, "clean", id="clean"),
    pytest.param(traces.escape, 1, "WS101", id="escape"),
    pytest.param(
        lambda f: traces.latent(f, traces.CONTINUATION_BOUND), 0, "WS103", id="latent, inside"
    ),
    pytest.param(
        lambda f: traces.latent(f, traces.CONTINUATION_BOUND - 256),
        1,
        "WS103",
        id="latent, beyond",
    ),
    pytest.param(_two_ranks(traces.escape), 1, "1 of 2 ranks", id="findings, missing rank"),
    pytest.param(traces.pointer, 1, "WS301", id="pointer finding"),
    pytest.param(traces.eager, 3, "no lock was seen", id="no lock by design"),
    pytest.param(_never_attached, 3, "never attached", id="never attached"),
    pytest.param(_only_the_api_server, 3, "never attached", id="no worker"),
    pytest.param(_two_ranks(traces.clean), 3, "1 of 2 ranks", id="a rank missing"),
    pytest.param(traces.killed_before_lock, 3, "before the lock", id="killed before the lock"),
    pytest.param(traces.refused, 3, "reserve was refused", id="reserve refused"),
    pytest.param(_broken_run_file, 3, "run.json cannot be read", id="broken run.json"),
]


@pytest.mark.parametrize(("make", "code", "says"), SITUATIONS)
def test_exit_code(
    make: Callable[[Path], Path], code: int, says: str, gate: Gate, tmp_path: Path
) -> None:
    found, text = gate(make(tmp_path / "t"))
    assert (found, says in text) == (code, True), text


@pytest.mark.parametrize(("make", "code", "says"), SITUATIONS)
def test_json_verdict_agrees_with_the_exit_code(
    make: Callable[[Path], Path], code: int, says: str, gate: Gate, tmp_path: Path
) -> None:
    _, text = gate(make(tmp_path / "t"), "--format", "json")
    judged = json.loads(text)
    assert judged["version"] == 1
    assert judged["verdict"] == {0: "clean", 1: "findings", 3: "inconclusive"}[code]


def test_allow_unlocked_removes_only_the_no_lock_reason(gate: Gate, tmp_path: Path) -> None:
    assert gate(traces.eager(tmp_path / "a"), "--allow-unlocked")[0] == 0
    both = traces.eager(tmp_path / "b", world=Ranks(dp=1, tp=2, pp=1))
    assert gate(both, "--allow-unlocked")[0] == 3
    killed = traces.killed_before_lock(tmp_path / "c")
    assert gate(killed, "--allow-unlocked")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["missing"], "No such trace"),
        (["here", "--fail-on", "WS999"], "WS999"),
        (["here", "--fail-on", ""], "empty"),
        (["here", "--fail-on", " "], "empty"),
        (["here", "--fail-on", "error,"], "does not know ''"),
        (["here", "--fail-on", "none,WS101"], "`none` goes with nothing else"),
        (["here", "--fail-on", "none", "--fail-on", "error"], "`none` goes with nothing else"),
        (["here", "--tolerance", ""], "empty"),
        (["here", "--min-exercise", ""], "empty"),
        (["here", "--min-exercise", "reqs=1,reqs=2"], "reqs twice"),
        (["here", "--format", "text", "--format", "text"], "twice"),
        (["here", "--format", "yaml"], "yaml"),
        (["here", "--min-exercise", "speed=9"], "speed"),
        (["here", "--expires", "soon"], "soon"),
        (["here", "--baseline", "nowhere.jsonl"], "nowhere.jsonl"),
        (["here", "--run", "zzz"], "zzz"),
        (["serve.log", "--run", "zzz"], "a log: it has no run to pick"),
        (["here", "--config", "nothing.toml"], "nothing.toml"),
    ],
)
def test_usage_errors_exit_2(
    arguments: list[str], says: str, gate: Gate, tmp_path: Path
) -> None:
    traces.clean(tmp_path / "here")
    (tmp_path / "serve.log").write_text("INFO 05-16 10:15:00 [core.py:1] started\n")
    code, text = gate(*arguments)
    assert (code, says in text) == (2, True), text


@pytest.mark.parametrize(
    ("name", "typed"), [("here", "here"), ("a b'c", "'a b'\"'\"'c'"), ("x\ny", "'x\\ny'")]
)
def test_advice_names_the_trace_as_it_was_typed(
    name: str, typed: str, gate: Gate, tmp_path: Path
) -> None:
    traces.escape(tmp_path / name)
    text = gate(name)[1]
    assert f"wstrace reserve {typed} -o reserve.yaml" in text
    assert "TRACE" not in text


def test_no_trace_at_all_exits_2(gate: Gate) -> None:
    assert gate()[0] == 2


@pytest.mark.parametrize(
    "content", [b"", b"not a trace\n", b"\xff\xfe\x00\n", b'{"t":"lock"}\n']
)
def test_an_unreadable_file_exits_2(content: bytes, gate: Gate, tmp_path: Path) -> None:
    file = tmp_path / "x.wst.jsonl"
    file.write_bytes(content)
    assert gate(file)[0] == 2


def test_a_trace_that_cannot_be_opened_exits_2(gate: Gate, tmp_path: Path) -> None:
    folder = traces.clean(tmp_path / "t")
    (folder / "node9.1.1.ffff.wst.jsonl").mkdir()
    assert gate(folder)[0] == 2


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [
        ("error", 0),
        ("warning", 1),
        ("all", 1),
        ("none", 0),
        ("WS204", 1),
        ("ws204", 1),
        ("WS101,WS301", 0),
        ("escapes", 0),
    ],
)
def test_fail_on_selects_by_severity_and_code(
    fail_on: str, code: int, gate: Gate, tmp_path: Path
) -> None:
    """Two ranks locked at different sizes: WS204, a warning, and nothing else."""
    run = traces.Run(tmp_path / "t", world=Ranks(dp=1, tp=2, pp=1))
    for rank, size in ((0, 64 * traces.KIB), (1, 96 * traces.KIB)):
        run.worker(
            traces.phase("profile"),
            traces.warm(2, size),
            traces.lock(size),
            traces.phase("serving"),
            traces.ask(2, size, size),
            traces.counts(),
            rank=rank,
        )
    assert gate(tmp_path / "t", "--fail-on", fail_on)[0] == code


def test_fail_on_none_still_needs_a_conclusive_trace(gate: Gate, tmp_path: Path) -> None:
    assert gate(_two_ranks(traces.escape)(tmp_path / "t"), "--fail-on", "none")[0] == 3


def test_folders_of_two_hosts_count_together(gate: Gate, tmp_path: Path) -> None:
    size = traces.CONTINUATION_BOUND
    world = Ranks(dp=1, tp=2, pp=1)
    for rank in (0, 1):
        traces.Run(tmp_path / f"host{rank}", world=world).worker(
            traces.phase("profile"),
            traces.warm(2, size),
            traces.lock(size),
            traces.phase("serving"),
            traces.counts(),
            rank=rank,
            host=f"node{rank}",
        )
    assert gate(tmp_path / "host0")[0] == 3
    assert gate(tmp_path / "host0", tmp_path / "host1")[0] == 0
    assert gate(tmp_path / "host0", tmp_path / "host0")[0] == 3


@pytest.mark.parametrize(
    ("makers", "code"),
    [
        ([traces.clean, traces.clean], 0),
        ([traces.clean, traces.refused], 3),
        ([traces.refused, traces.escape, traces.clean], 1),
        ([traces.clean, _never_attached], 3),
    ],
)
def test_of_several_runs_the_worst_counts(
    makers: list[Any], code: int, gate: Gate, tmp_path: Path
) -> None:
    def folder(number: int, make: Any) -> Path:
        never = make is _never_attached
        if never:
            return _never_attached(tmp_path / str(number))
        made: Path = make(tmp_path / str(number), run=f"run-{number}")
        return made

    assert gate(*(folder(n, make) for n, make in enumerate(makers)))[0] == code


@pytest.mark.parametrize("order", [0, 1])
def test_of_several_runs_in_one_folder_each_is_judged(
    order: int, gate: Gate, tmp_path: Path
) -> None:
    """Whichever began last: an older crash must not hide behind a newer run."""
    folder = tmp_path / "runs"
    for number, make in enumerate([traces.clean, traces.escape][:: 1 - 2 * order]):
        make(tmp_path / str(number), run=f"run-{number}")
        (file,) = (tmp_path / str(number)).glob("*.wst.jsonl")
        folder.mkdir(exist_ok=True)
        text = file.read_text().replace('"wall_ns":1,', f'"wall_ns":{1000 + number},')
        (folder / f"run-{number}.{file.name}").write_text(text)
    crashed = f"run-{1 - order}"
    code, told = gate(folder)
    assert code == 1
    assert "2 runs in" in told
    assert "--run ID" in told
    assert f"run {crashed}: " in told
    assert f"wstrace reserve {folder} --run {crashed} -o" in told
    for fmt in ("json", "sarif", "junit", "github", "markdown"):
        code, text = gate(folder, "--format", fmt)
        assert (code, "WS101" in text) == (1, True), fmt
    assert gate(folder, "--run", crashed)[0] == 1
    assert gate(folder, "--run", f"run-{order}")[0] == 0


def test_a_run_of_the_folder_that_left_no_trace_is_judged_too(
    gate: Gate, tmp_path: Path
) -> None:
    folder = traces.clean(tmp_path / "runs", run="run-1")
    meta = {"run": "run-0", "command": [], "started": "", "wstrace": "0.1"}
    (folder / "run.run-0.json").write_text(json.dumps(meta))
    code, text = gate(folder)
    assert (code, "run run-0: " in text) == (3, True), text
    assert gate(folder, "--run", "run-1")[0] == 0


@pytest.mark.parametrize("ends", [(0, 1), (1, 0), (None, 0), (0, None), (0, 0)])
def test_of_two_hosts_of_a_run_the_worse_end_counts(
    ends: tuple[int | None, int | None], gate: Gate, tmp_path: Path
) -> None:
    folders = []
    for number, code in enumerate(ends):
        folder = traces.clean(tmp_path / f"host{number}", run="r1", over=False)
        (file,) = folder.glob("*.wst.jsonl")
        file.rename(folder / f"r1.host{number}.wst.jsonl")
        meta: dict[str, object] = {"run": "r1", "command": [], "started": "", "wstrace": "0.1"}
        ended = {} if code is None else {"ended": "later", "exit_code": code}
        meta |= {"sizes": {f"r1.host{number}.wst.jsonl": 1}}
        (folder / "run.json").write_text(json.dumps(meta | ended))
        folders.append(folder)
    assert gate(*folders)[0] == (0 if ends == (0, 0) else 3)


def test_json_contract(gate: Gate, tmp_path: Path) -> None:
    _, text = gate(traces.escape(tmp_path / "t", computed=2048), "--format", "json")
    judged = json.loads(text)
    (finding,) = [f for f in judged["findings"] if f["code"] == "WS101"]
    assert finding["severity"] == "error"
    assert finding["file"] == "vllm/v1/attention/backends/tiny_attn.py"
    assert finding["function"] == "TinyImpl._continuation_prefill"
    assert finding["slot"] == {"ubatch": 0, "lane": 0}
    assert finding["ranks"] == [{"dp": 0, "tp": 0, "pp": 0, "ep": None}]
    assert finding["warmup_bytes"] is None
    assert finding["serving_bytes"] == 2 * 4 * 2048 * 64 * 2
    assert finding["arena_bytes"] == 65536
    assert finding["bound"]["bytes"] == 2 * 4 * 4096 * 64 * 2
    assert finding["bound"]["grade"] == "proved"
    assert finding["bound"]["formula"]


def test_several_formats_at_once(gate: Gate, tmp_path: Path) -> None:
    trace = traces.escape(tmp_path / "t")
    code, text = gate(
        trace,
        *("--format", "junit", "-o", "junit.xml"),
        *("--format", "sarif", "-o", "out.sarif"),
        *("--format", "json:out.json", "--format", "text"),
    )
    assert code == 1
    assert text.startswith("wstrace gate: 1 finding (exit 1)")
    assert (tmp_path / "junit.xml").read_text().startswith("<?xml")
    assert json.loads((tmp_path / "out.sarif").read_text())["version"] == "2.1.0"
    assert json.loads((tmp_path / "out.json").read_text())["verdict"] == "findings"


def test_min_exercise_makes_a_thin_run_inconclusive(gate: Gate, tmp_path: Path) -> None:
    """The run's counters: 2 requests at most, a continuation of 448 of 4,095 tokens."""
    trace = traces.clean(tmp_path / "t")
    assert gate(trace, "--min-exercise", "reqs=2,continued=448,tokens=50%")[0] == 0
    code, text = gate(trace, "--min-exercise", "continued=449")
    assert code == 3
    assert "longest continuation 448, 449 asked for" in text
    assert gate(trace, "--min-exercise", "continued=50%")[0] == 3
    assert gate(traces.escape(tmp_path / "e"), "--min-exercise", "reqs=9")[0] == 1


def test_the_share_of_a_bound_is_asked_where_there_is_one(gate: Gate, tmp_path: Path) -> None:
    """512 computed tokens are an eighth of 4,096; an observed bound is no bound."""
    latent = traces.latent(tmp_path / "t", traces.CONTINUATION_BOUND)
    assert gate(latent, "--min-exercise", "share=12%")[0] == 0
    code, text = gate(latent, "--min-exercise", "share=13%")
    assert code == 3
    assert "thin run" in text
    observed = traces.eager(tmp_path / "observed")
    assert gate(observed, "--allow-unlocked", "--min-exercise", "share=100%")[0] == 0


def test_a_clean_verdict_says_what_was_exercised(gate: Gate, tmp_path: Path) -> None:
    _, text = gate(traces.clean(tmp_path / "t"))
    assert "longest continuation 448 of 4,095" in text
    assert "largest batch 2 of 8" in text
    assert "sites reached 1 of 1" in text
    assert "TinyImpl._continuation_prefill: 4.00 MiB, 100% of its proved bound" in text


@pytest.mark.parametrize(
    ("exit_code", "gate_exit"), [(0, 0), (143, 0), (130, 0), (1, 3), (137, 3)]
)
def test_a_command_that_was_killed_or_failed_is_not_clean(
    exit_code: int, gate_exit: int, gate: Gate, tmp_path: Path
) -> None:
    trace = traces.clean(tmp_path / "t", run="r1")
    meta = {"run": "r1", "command": [], "started": "", "wstrace": "0.1.0"}
    (trace / "run.json").write_text(json.dumps(meta | {"exit_code": exit_code}))
    code, text = gate(trace)
    assert code == gate_exit
    told = f"the command ended with exit code {exit_code}: what happened at its end"
    assert (told in text) == (gate_exit == 3)
