"""`wstrace reserve` on a trace of two ranks, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import typer

from tests.unit.reserve.examples import LIMITS
from wstrace.cli.commands.reserve import command
from wstrace.errors import WstraceError
from wstrace.reserve.config import (
    Model,
    ReserveConfig,
    SiteReserve,
    SlotReserve,
    dumps,
    evaluate,
    layout,
    load_reserve,
    mismatch,
    model_digest,
)
from wstrace.trace.records import (
    FORMAT,
    Failure,
    Growth,
    Header,
    Leaf,
    Limit,
    Lock,
    Memory,
    PhaseChange,
    Provenance,
    Ranks,
    Record,
    Request,
    ReserveEvent,
    ScheduledRequest,
    Site,
    Slot,
    Step,
    WorkerInit,
)

SITE = "layer.py:Layer.continuation"


def _request(cached: int) -> Request:
    """2 KV heads, 64 wide, 2 bytes, blocks of 16: one buffer."""
    rows = -(-cached // 16) * 16
    leaves = [
        Leaf(name="cached", kind="driver", value=cached, role="num_computed_tokens"),
        Leaf(name="block_size", kind="constant", value=16),
        Leaf(name="wide", kind="constant", value=2 * 64 * 2),
    ]
    return Request(
        site=1,
        slot=Slot(),
        bytes=rows * 256,
        arena=1024,
        phase="serving",
        locked=True,
        step=Step(
            index=2,
            total_tokens=8,
            num_reqs=1,
            requests=[ScheduledRequest(scheduled=8, computed=cached)],
        ),
        provenance=Provenance(formula="round_up(cached, block_size) * wide", leaves=leaves),
    )


def _write(folder: Path, rank: int, limits: dict[str, Limit], requests: list[Request]) -> None:
    slots = [Slot()]
    records: list[Record] = [
        Header(format=FORMAT, run="r1", wstrace="0.1", vllm="0.21.0", host="h", pid=rank),
        WorkerInit(ranks=Ranks(tp=rank, rank=rank), world=Ranks(tp=2, rank=2), limits=limits),
        PhaseChange(phase="profile"),
        Growth(slot=Slot(), before=0, after=1024, phase="profile", window="counted"),
        Memory(available_kv_bytes=(2 - rank) << 30, bytes_per_block=1 << 16, block_size=16),
        Lock(event="lock", slots=slots, sizes=[1024], phase="capture"),
        PhaseChange(phase="serving"),
        Site(
            id=1, file="layer.py", function="Layer.continuation", line=9, caller="layer.py:9:c"
        ),
        *requests,
    ]
    lines = b"\n".join(msgspec.json.encode(record) for record in records)
    (folder / f"h.{rank}.1.abcd.wst.jsonl").write_bytes(lines + b"\n")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    folder = tmp_path / "trace"
    folder.mkdir()
    _write(folder, 0, LIMITS, [_request(100)])
    _write(folder, 1, LIMITS, [_request(100), _request(300)])
    return folder


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`wstrace reserve` in this process: exit code and what it printed."""
    app = typer.Typer()
    app.command()(command)

    def go(*words: str | Path) -> Done:
        code = 0
        try:
            app([str(word) for word in words], standalone_mode=False)
        except WstraceError as error:
            code = error.exit_code
            print(error, file=sys.stderr)
        return Done(code, *capsys.readouterr())

    return go


def test_yaml_to_a_file_with_a_summary(run: Run, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "reserve.yaml"
    done = run(trace, "-o", target)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "Reserve: 1.00 MiB in each of 1 slot." in done.stderr
    config = load_reserve(target)
    assert config.slots[0].bytes == 4096 * 256
    assert (config.sites[0].site, config.sites[0].grade) == (SITE, "proved")
    assert config.cost.bytes == 4096 * 256 - 1024
    assert (config.cost.blocks, config.cost.tokens) == (16, 256)


def test_json_is_the_contract(run: Run, trace: Path) -> None:
    payload = json.loads(run(trace, "--format", "json").stdout)
    assert payload["version"] == 1
    assert payload["slots"] == [{"ubatch": 0, "lane": 0, "bytes": 1 << 20}]
    assert payload["kv_cost"]["counted"] is True
    assert payload["not_covered"] == []


def test_what_if_and_cover_and_budget(run: Run, trace: Path) -> None:
    longer = json.loads(run(trace, "--format", "json", "--set", "max_model_len=8192").stdout)
    assert longer["slots"][0]["bytes"] == 8192 * 256
    seen = run(trace, "--format", "json", "--cover", f"{SITE}=observed")
    assert json.loads(seen.stdout)["slots"][0]["bytes"] == 304 * 256
    assert "Can still fail" in seen.stderr
    capped = run(trace, "--format", "json", "--budget", "512KiB")
    assert json.loads(capped.stdout)["slots"][0]["bytes"] == 512 << 10
    assert "num_computed_tokens above 2048" in capped.stderr


def test_a_size_below_1_is_no_what_if(run: Run, trace: Path) -> None:
    assert "max_model_len is 1 or more" in run(trace, "--set", "max_model_len=0").stderr
    assert run(trace, "--set", "num_speculative_tokens=0").returncode == 0


def test_a_cover_that_the_budget_cuts_is_told(run: Run, trace: Path) -> None:
    words = ("--format", "json", "--budget", "2MiB", "--cover")
    done = run(trace, *words, f"{SITE}=1TiB")
    told = f"{SITE}: --cover asks for 1.00 TiB, --budget cuts it to 2.00 MiB."
    assert json.loads(done.stdout)["can_fail"] == [told]
    assert f"Can still fail: {told}" in done.stderr
    assert json.loads(run(trace, *words, f"{SITE}=2MiB").stdout)["can_fail"] == []


def test_a_number_that_the_trace_lacks_completes_the_bound(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    limits = {name: value for name, value in LIMITS.items() if name != "max_model_len"}
    _write(folder, 0, limits, [_request(100)])
    without = json.loads(run(folder, "--format", "json").stdout)["sites"][0]
    assert (without["grade"], without["needs"]) == ("observed", ["max_model_len"])
    given = run(folder, "--format", "json", "--set", "max_model_len=4096")
    site = json.loads(given.stdout)["sites"][0]
    assert (site["grade"], site["bytes"]) == ("proved", 4096 * 256)
    assert site["constants"]["max_model_len"] == 4096
    target = tmp_path / "reserve.yaml"
    assert run(folder, "--set", "max_model_len=4096", "-o", target).returncode == 0
    assert evaluate(load_reserve(target), limits)[0].bytes == 4096 * 256
    assert mismatch(load_reserve(target), limits, model_digest(limits)) is None


def test_an_existing_file_stays_without_force(run: Run, trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "reserve.yaml"
    target.write_text("mine")
    done = run(trace, "-o", target)
    assert (done.returncode, target.read_text()) == (2, "mine")
    assert run(trace, "-o", target, "--force").returncode == 0
    assert target.read_text() != "mine"


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "max_model_len"],
        ["--set", "max_model_len=long"],
        ["--set", "max_model_len="],
        ["--set", "max_model_len=" + "9" * 30],
        ["--set", "max_model_len=64", "--set", "max_model_len=128"],
        ["--cover", f"{SITE}="],
        ["--cover", f"{SITE}=p99", "--cover", f"{SITE}=bound"],
        ["--budget", "9" * 400],
        ["--set", "no_such_limit=1"],
        ["--set", "max_model_len=0"],
        ["--set", "max_num_seqs=0"],
        ["--set", "num_speculative_tokens=-1"],
        ["--set", "num_kv_heads=4"],
        ["--cover", "Nobody=observed"],
        ["--cover", f"{SITE}=all"],
        ["--budget", "much"],
        ["-o", "/no/such/folder/reserve.yaml"],
    ],
)
def test_bad_input_is_two_lines_and_exit_2(run: Run, trace: Path, words: list[str]) -> None:
    done = run(trace, *words)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 2, done.stderr
    assert done.stdout == ""


def test_a_trace_without_requests_has_nothing_to_reserve(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    _write(folder, 0, LIMITS, [])
    done = run(folder)
    assert done.returncode == 2
    assert "nothing to reserve" in done.stderr


OTHER = "other.py:Other.decode"


def _reserved(folder: Path, size: int) -> ReserveConfig:
    site = SiteReserve(site=OTHER, grade="observed", bytes=size, cover="observed")
    model = Model(digest=model_digest(LIMITS), layout=layout(LIMITS))
    slots = [SlotReserve(bytes=size)]
    config = ReserveConfig(model=model, limits=LIMITS, slots=slots, sites=[site])
    (folder / "old.yaml").write_text(dumps(config), "utf-8")
    return config


def test_the_sites_of_the_reserve_that_the_run_had_are_kept(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    config = msgspec.json.encode(_reserved(tmp_path, 8 << 20)).decode()
    event = ReserveEvent(event="applied", path="old.yaml", config=config)
    with (trace / "h.0.1.abcd.wst.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(event) + b"\n")
    done = run(trace, "--format", "json")
    assert {s["site"]: s["bytes"] for s in json.loads(done.stdout)["sites"]} == {
        SITE: 4096 * 256, OTHER: 8 << 20,
    }  # fmt: skip
    assert f"Kept: {OTHER}: kept from old.yaml, not reached in this run" in done.stderr


KEPT_BYTES = "sites of the applied reserve"


def _of_unknown_sites(trace: Path, config: str) -> None:
    """A reserve of 8 MiB was applied, as an older recorder wrote it."""
    grown = Growth(slot=Slot(), before=1024, after=8 << 20, phase="profile", reserve=True)
    event = ReserveEvent(event="applied", slots=[Slot()], sizes=[8 << 20], config=config)
    with (trace / "h.0.1.abcd.wst.jsonl").open("ab") as file:
        file.write(b"".join(msgspec.json.encode(r) + b"\n" for r in (grown, event)))


@pytest.mark.parametrize("config", ["", "{", '{"kind":"wstrace-reserve","of_tomorrow":1}'])
def test_a_reserve_whose_sites_nobody_knows_keeps_its_bytes_and_says_so(
    run: Run, trace: Path, tmp_path: Path, config: str
) -> None:
    _of_unknown_sites(trace, config)
    done = run(trace, "-o", tmp_path / "new.yaml")
    new = load_reserve(tmp_path / "new.yaml")
    assert [slot.bytes for slot in new.slots] == [8 << 20] * len(new.slots)
    assert [item.site for item in new.not_covered] == [KEPT_BYTES]
    assert f"Not covered: {KEPT_BYTES}: A reserve of 8.00 MiB was applied" in done.stderr
    live = evaluate(new, LIMITS, [Slot()])
    assert {slot.bytes for slot in live} == {8 << 20}
    _reserved(tmp_path, 8 << 20)
    run(trace, "--merge", tmp_path / "old.yaml", "-o", tmp_path / "merged.yaml")
    merged = load_reserve(tmp_path / "merged.yaml")
    assert merged.slots[0].bytes == 8 << 20
    assert KEPT_BYTES not in {item.site for item in merged.not_covered}
    run(trace, "--set", "max_model_len=2048", "-o", tmp_path / "less.yaml")
    assert load_reserve(tmp_path / "less.yaml").slots[0].bytes == 2048 * 256


def test_a_budget_cuts_the_bytes_that_are_kept(run: Run, trace: Path, tmp_path: Path) -> None:
    _of_unknown_sites(trace, "")
    run(trace, "--budget", "2MiB", "-o", tmp_path / "cut.yaml")
    cut = load_reserve(tmp_path / "cut.yaml")
    assert sum(slot.bytes for slot in cut.slots) <= 2 << 20
    assert KEPT_BYTES in {item.site for item in cut.not_covered}


def test_a_site_that_a_what_if_drops_is_in_the_file(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    """At a length of 1 nothing is ever computed before a step, so the formula gives 0."""
    _reserved(tmp_path, 8 << 20)
    words = ("--set", "max_model_len=1", "--merge", tmp_path / "old.yaml")
    run(trace, *words, "-o", tmp_path / "new.yaml")
    new = load_reserve(tmp_path / "new.yaml")
    assert SITE not in {site.site for site in new.sites}
    (dropped,) = [item for item in new.not_covered if item.site == SITE]
    assert dropped.why == (
        "needs no bytes under these limits; in the trace it asked 76.00 KiB."
    )


def test_several_traces_and_an_older_file_give_one_reserve(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    _reserved(tmp_path, 8 << 20)
    short = tmp_path / "short"
    short.mkdir()
    _write(short, 0, LIMITS, [])
    done = run(short, trace, "--merge", tmp_path / "old.yaml", "--format", "json")
    assert {s["site"] for s in json.loads(done.stdout)["sites"]} == {SITE, OTHER}
    other = tmp_path / "other"
    other.mkdir()
    _write(other, 0, {**LIMITS, "num_kv_heads": 64}, [_request(100)])
    refused = run(trace, other)
    assert refused.returncode == 2
    assert "num_kv_heads is" in refused.stderr


def test_after_a_death_the_sites_behind_it_are_said_to_be_unseen(
    run: Run, trace: Path, tmp_path: Path
) -> None:
    step = Step(index=39, total_tokens=8, num_reqs=1)
    failure = Failure(kind="arena", site=1, slot=Slot(), phase="serving", step=step)
    with (trace / "h.0.1.abcd.wst.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(failure) + b"\n")
    target = tmp_path / "reserve.yaml"
    done = run(trace, "-o", target)
    told = "The run died at step 39; sites behind it were not seen."
    assert told in done.stderr
    assert told in [item.why for item in load_reserve(target).not_covered]


def test_a_reserve_of_no_bytes_is_refused(run: Run, trace: Path) -> None:
    done = run(trace, "--budget", "10")
    assert (done.returncode, done.stdout) == (2, "")
    assert "would have 0 bytes" in done.stderr


def test_the_program_exits_2_with_two_lines(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "wstrace.cli.app", "reserve", str(tmp_path / "none")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 2
