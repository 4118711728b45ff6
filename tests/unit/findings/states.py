"""Runs that are not clean: each end as a run of its own, with its words and exit code."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from tests.unit.findings.build import (
    CLEAN,
    MOE,
    ask,
    grown,
    locked,
    process,
    session,
    with_exit,
)
from tests.unit.findings.ranks_apart import (
    launched_twice,
    launches_in_turn,
    of_two_models,
    one_falls_behind,
    one_lacks_a_request,
    one_stops_at,
    started_anew,
    stops_long_before,
    two_engines_of_a_dense_model,
)
from wstrace.file_names import command_file
from wstrace.findings.analysed_run import AnalysedRun, analyse, load_run
from wstrace.trace.reader import Trace
from wstrace.trace.records import (
    Counts,
    End,
    Failure,
    Lock,
    Note,
    PhaseChange,
    Ranks,
    Record,
    ReserveEvent,
    Slot,
)
from wstrace.trace.run_file import RunFile, read_run, together

SAMPLES = Path(__file__).resolve().parents[3] / "sample_traces"


def one_silent_command() -> AnalysedRun:
    """Two commands of a launch, of which one names the only file."""
    worker = process(*CLEAN)
    worker.sized = True
    had = {worker.path.name: 1}
    metas = [
        RunFile("run1", ["vllm", name], "", "0.1.0", exit_code=0, sizes=sizes)
        for name, sizes in (("first", had), ("second", {}))
    ]
    trace = Trace(Path("trace"), "run1", [worker], together(metas), commands=metas)
    return analyse(trace)


def noted(text: str, piece: str = "") -> AnalysedRun:
    """A note of the recorder; without `piece` as an older one wrote it."""
    return session(process(*CLEAN, Note(text=text, piece=piece)))


def cut_before_the_refusal(folder: Path) -> AnalysedRun:
    """demo-crash, torn within the line of the request that precedes its first failure."""
    shutil.copytree(SAMPLES / "demo-crash", folder, dirs_exist_ok=True)
    (trace,) = folder.glob("*.wst.jsonl")
    lines = trace.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["t"] for line in lines]
    failure = kinds.index("failure")
    last = max(i for i in range(failure) if kinds[i] == "request")
    trace.write_bytes(b"".join(lines[:last]) + lines[last][:200])
    return load_run(folder)


def unlocked_and_quiet() -> AnalysedRun:
    return session(process(PhaseChange(phase="serving"), Counts(step=140, steps_real=132)))


def a_worker_vanished() -> AnalysedRun:
    one = process(*CLEAN, End(), ranks=Ranks(tp=0, rank=0))
    other = process(*CLEAN, ranks=Ranks(tp=1, rank=1))
    return session(one, other)


def lost(word: str, folder: Path) -> AnalysedRun:
    """A recorder that stood down, with `word` in the room of its header."""
    worker = process(*CLEAN)
    worker.header.lost = word.ljust(240)
    written(session(worker), folder)
    return load_run(folder)


def lived_on() -> AnalysedRun:
    worker = process(*CLEAN)
    worker.header.pid = 41
    meta = RunFile("run1", ["serve"], "", "0.1.0", ended="later", exit_code=0)
    meta.living = ["pid 41 (VLLM::Worker)", "pid 42 (sleep 9)"]
    return analyse(Trace(Path("t"), "run1", [worker], meta))


def start_raised(*before: Record) -> AnalysedRun:
    told = PhaseChange(
        phase="init", why="compile_or_warm_up_model raised", error="ImportError: no kernels"
    )
    return session(process(PhaseChange(phase="warmup"), *before, told))


def never_locked() -> AnalysedRun:
    asked = grown(1 << 20, "profile"), ask(MOE, 1 << 20, "profile", 0)
    later = ask(MOE, 1 << 20, "serving", 1 << 20, locked=False)
    serving = PhaseChange(phase="serving"), later, Counts(step=40, steps_real=39)
    return session(process(*asked, *serving))


def failure(kind: Literal["arena", "memory"]) -> Failure:
    slot, sizes = Slot(), (1 << 21, 1 << 20)
    required, arena = sizes
    return Failure(
        kind=kind, site=MOE.id, slot=slot, required=required, arena=arena, phase="serving"
    )


def unlocked_for_good() -> AnalysedRun:
    """Elastic EP let go and did not lock again, and the server went on."""
    let_go = Lock(event="unlock", slots=[Slot()], sizes=[1 << 20], phase="unlocked")
    on = PhaseChange(phase="unlocked"), PhaseChange(phase="serving"), Counts(step=50)
    return session(process(*CLEAN, let_go, *on))


RESERVED: tuple[Record, ...] = (
    grown(1 << 21, "profile", reserve=True),
    ReserveEvent(event="applied", slots=[Slot()], sizes=[1 << 21]),
)


def locked_anew_without_its_reserve() -> AnalysedRun:
    """The manager was made again after an unlock, and its arena is smaller than the reserve."""
    let_go = Lock(event="unlock", slots=[Slot()], sizes=[1 << 21], phase="unlocked")
    refused = ask(MOE, 3 << 19, "serving", 1 << 20), failure("arena")
    return session(process(*RESERVED, *locked(1 << 21), let_go, *locked(1 << 20), *refused))


def reserved_and_unlocked_for_good() -> AnalysedRun:
    run = unlocked_for_good()
    run.trace.processes[0].records[3:3] = RESERVED
    return analyse(run.trace)


def ready_and_not_asked() -> AnalysedRun:
    """Locked, and killed before the counters of a first second were written."""
    begun = grown(1 << 20, "profile"), ask(MOE, 1 << 20, "profile", 0)
    return with_exit(session(process(*begun, *locked(1 << 20)[:-1])), 0)


def one_engine_of(*options: str) -> AnalysedRun:
    """A dense model under data parallelism: each engine stands alone, and one was seen."""
    meta = RunFile("run1", ["vllm", "serve", "m", *options], "", "0.1.0", exit_code=0)
    return analyse(Trace(Path("t"), "run1", [process(*CLEAN, End())], meta))


def without_an_end(*last: Record) -> AnalysedRun:
    meta = RunFile("run1", ["vllm", "serve"], "", "0.1.0")
    return analyse(Trace(Path("t"), "run1", [process(*CLEAN, *last)], meta))


def without_run_json(*last: Record) -> AnalysedRun:
    """Recorded by the environment alone, without `wstrace run`."""
    return analyse(Trace(Path("t"), "run1", [process(*CLEAN, *last)]))


def never_attached() -> AnalysedRun:
    return with_exit(analyse(Trace(Path("t"), "r", [], None)), 0)


def an_empty_file(folder: Path) -> AnalysedRun:
    """The disk was full when the worker opened its file."""
    written(session(process(*CLEAN)), folder)
    (folder / "run1.h.9.wst.jsonl").touch()
    return load_run(folder)


def shortened(folder: Path, keep: int | None) -> AnalysedRun:
    """Whole when its command ended; then its file was cut between two records, or went."""
    written(with_exit(session(process(*CLEAN)), 0), folder)
    (file,) = folder.glob("*.wst.jsonl")
    meta = read_run(folder / "run.json")
    assert meta is not None
    meta.sizes = {file.name: 9_000}
    (folder / "run.json").write_bytes(msgspec.json.encode(meta))
    if keep is None:
        file.unlink()
        return load_run(folder)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:keep]))
    return load_run(folder)


def of_no_size() -> AnalysedRun:
    """run.json of an older wstrace, without its files' sizes: a cut between two records."""
    run = with_exit(session(process(*CLEAN)), 0)
    run.trace.processes[0].sized = False
    return analyse(run.trace)


def without(folder: Path, *kinds: str, sample: str = "demo-grow") -> AnalysedRun:
    """A sample from which somebody took all records of these kinds."""
    shutil.copytree(SAMPLES / sample, folder, dirs_exist_ok=True)
    (trace,) = folder.glob("*.wst.jsonl")
    lines = trace.read_bytes().splitlines(keepends=True)
    trace.write_bytes(b"".join(line for line in lines if json.loads(line)["t"] not in kinds))
    return load_run(folder)


def a_child_alone(folder: Path) -> AnalysedRun:
    child = process(*CLEAN, End())
    child.header.parent = "first.wst.jsonl"
    written(session(child), folder)
    return load_run(folder)


def of_a_later_wstrace(folder: Path) -> AnalysedRun:
    written(session(process(*CLEAN)), folder)
    (file,) = folder.glob("*.wst.jsonl")
    file.write_bytes(file.read_bytes() + b'{"t":"later","ns":9}\n' * 2)
    return load_run(folder)


def a_pipe_in_a_files_place(folder: Path) -> AnalysedRun:
    """Opening one waits for a writer, for ever."""
    written(session(process(*CLEAN)), folder)
    os.mkfifo(folder / "run1.h.9.wst.jsonl")
    return load_run(folder)


def a_stranger_is_cut() -> AnalysedRun:
    """An engine's file without a worker record, whose last line is torn."""
    run = a_stranger_was_refused()
    run.trace.processes[1].cut = True
    return analyse(run.trace)


def the_newest_of_two_left_nothing(folder: Path) -> AnalysedRun:
    written(session(process(*CLEAN)), folder)
    newest = RunFile("run2", ["serve"], "2026-05-16T10:15:00+00:00", "0.1.0", ended="x")
    newest.exit_code = 0
    (folder / "run.json").write_bytes(msgspec.json.encode(newest))
    return load_run(folder)


def a_fork_was_refused() -> AnalysedRun:
    parent, child = process(*CLEAN, End()), process(*CLEAN)
    child.header.parent = "x.wst.jsonl"
    child.records.append(ask(MOE, 1 << 21, "serving", 1 << 20))
    child.records.append(Failure(kind="arena", site=MOE.id, slot=Slot(), phase="serving"))
    return session(parent, child)


def a_stranger_was_refused(*told: Record, role: str = "EngineCore") -> AnalysedRun:
    """A file without a worker record, with a refusal in it."""
    stranger = process(*told)
    del stranger.records[0]
    stranger.header.role = role
    return with_exit(session(process(*CLEAN, End()), stranger), 0)


def written(run: AnalysedRun, folder: Path) -> None:
    """The run as the recorder leaves it on the disk."""
    folder.mkdir(exist_ok=True)
    sizes = {}
    for number, one in enumerate(run.trace.processes):
        records = [one.header, *one.records]
        lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        lines += b'{"t":"requ' if one.cut else b""
        (folder / f"run1.h.{number}.wst.jsonl").write_bytes(lines)
        sizes[f"run1.h.{number}.wst.jsonl"] = len(lines) if one.sized else 0
    if run.trace.meta is not None:
        sized = {name: size for name, size in sizes.items() if size}
        meta = msgspec.structs.replace(run.trace.meta, run=run.trace.run, sizes=sized)
        (folder / "run.json").write_bytes(msgspec.json.encode(meta))
    for number, meta in enumerate(run.trace.commands[1:]):
        (folder / command_file(run.trace.run, f"{number:x}")).write_bytes(
            msgspec.json.encode(meta)
        )


@dataclass(frozen=True)
class State:
    """A run that is not clean, words that every output has, and the gate's exit code."""

    make: Callable[[Path], AnalysedRun]
    words: str
    code: int = 3


FORKED = "_allocate_buffers"
STATES = {
    "killed": State(
        lambda _: with_exit(session(process(*CLEAN)), 137), "ended with exit code 137"
    ),
    "failed": State(lambda _: with_exit(session(process(*CLEAN)), 1), "ended with exit code 1"),
    "torn": State(cut_before_the_refusal, "is cut: what came after it is lost"),
    "request lost": State(
        lambda _: noted("recorder: request: RuntimeError: x", "request"),
        "a request or a lock may be lost",
    ),
    "failure lost": State(
        lambda _: noted("recorder: failure: KeyError: 1"), "a request or a lock may be lost"
    ),
    "vanished": State(lambda _: a_worker_vanished(), "wrote no end, where 1 other worker did"),
    "quiet": State(lambda _: unlocked_and_quiet(), "no layer asked for workspace in 132 steps"),
    "no worker": State(
        lambda _: with_exit(analyse(Trace(Path("t"), "r", [], None)), 1),
        "the command ended with exit code 1 before a worker started",
    ),
    "disk full": State(
        lambda folder: lost("[Errno 28] No space left on device (7 ns)", folder),
        "records were lost: [Errno 28] No space left on device",
    ),
    "size limit, then a refusal": State(
        lambda folder: lost(
            "[Errno 27] too large (7 ns); vLLM refused a request after that", folder
        ),
        "vLLM refused a request after that",
    ),
    "file deleted": State(
        lambda folder: lost("an earlier trace file of this process was deleted", folder),
        "an earlier trace file of this process was deleted",
    ),
    "lived on": State(lambda _: lived_on(), "rank 0 lived on after the command"),
    "start raised": State(
        lambda _: start_raised(), "warm-up ended with ImportError: no kernels"
    ),
    "start raised after the lock": State(
        lambda _: start_raised(
            Lock(event="lock", slots=[Slot()], sizes=[1], phase="warmup"),
            PhaseChange(phase="post-lock-warmup"),
        ),
        "warm-up ended with ImportError: no kernels",
    ),
    "never locked": State(lambda _: never_locked(), "no lock was seen"),
    "never attached": State(lambda _: never_attached(), "the recorder never attached"),
    "empty file": State(an_empty_file, "run1.h.9.wst.jsonl has no whole record"),
    "two runs": State(the_newest_of_two_left_nothing, "the recorder never attached"),
    "dp": State(
        lambda _: two_engines_of_a_dense_model(), "dp1 wrote no end, where 1 other worker did"
    ),
    "unlocked for good": State(
        lambda _: unlocked_for_good(), "the arena was unlocked and not locked again"
    ),
    "locked anew without its reserve": State(
        lambda _: locked_anew_without_its_reserve(),
        "asked 1.50 MiB in a slot locked at 1.00 MiB",
        1,
    ),
    "reserved and unlocked for good": State(
        lambda _: reserved_and_unlocked_for_good(),
        "the arena was unlocked and not locked again",
    ),
    "ready and not asked": State(
        lambda _: ready_and_not_asked(), "no request was served after warm-up"
    ),
    "out of memory": State(
        lambda _: session(process(*CLEAN, failure("memory"))),
        "vLLM ran out of memory for a request for workspace in serving",
    ),
    "request of a refusal lost": State(
        lambda _: session(process(*CLEAN, failure("arena"))),
        "sites behind it were not seen",
        1,
    ),
    "reserve refused": State(
        lambda _: session(process(*CLEAN, ReserveEvent(event="refused", why="other heads"))),
        "a reserve was refused: other heads",
    ),
    "start cut": State(
        lambda _: session(process(PhaseChange(phase="load"))), "ends in phase load"
    ),
    "an engine without a trace": State(
        lambda _: one_engine_of("--data-parallel-size", "2"),
        "1 of 2 data-parallel engines left no trace",
    ),
    "a command without a trace": State(
        lambda _: one_silent_command(), "1 of 2 commands of this run left no trace"
    ),
    "no end": State(lambda _: without_an_end(), "run.json has no end: the command still ran"),
    "no run.json": State(
        lambda _: without_run_json(),
        "no run.json says how this run ended: what rank 0 did after its last record",
    ),
    "a rank falls behind": State(
        lambda _: one_falls_behind(),
        "tp1 ends at step 40, where its peers went on to step 400",
    ),
    "a rank lacks a request": State(
        lambda _: one_lacks_a_request(),
        "tp1 ends at step 40, where its peers went on to step 50",
    ),
    "started anew": State(
        lambda _: started_anew(),
        "rank 0 (pid 41) wrote no end before another process took its place",
    ),
    "launched twice": State(
        lambda _: launched_twice(),
        "2 ranks left more than one trace: a worker that was started again, or two launches",
    ),
    "ranks of two models": State(
        lambda _: of_two_models(), "the workers have different values of model: a, b"
    ),
    "a launch lacks a rank": State(
        lambda _: launches_in_turn(1),
        "tp0 (pid 0) and tp1 ran at different times: a launch lacks a rank",
    ),
    "cut between records": State(
        lambda folder: shortened(folder, -1),
        "had 9,000 bytes when the command ended, and has",
    ),
    "deleted after its end": State(
        lambda folder: shortened(folder, None),
        "was there when the command ended, and is gone",
    ),
    "no size": State(
        lambda _: of_no_size(), "rank 0 wrote no end, and run.json does not say how much"
    ),
    "requests taken out": State(
        lambda folder: without(folder, "request", "growth"),
        "lacks records: its counters have a request of",
    ),
    "a child alone": State(a_child_alone, "first.wst.jsonl is gone: the process of run1.h.0"),
    "of an engine of unknown size": State(
        lambda _: session(process(*CLEAN, world=Ranks(rank=1), ranks=Ranks(rank=0))),
        "how many ranks the engine has is in no record",
    ),
    "of a later wstrace": State(of_a_later_wstrace, "2 records of an unknown kind"),
    "a pipe": State(a_pipe_in_a_files_place, "run1.h.9.wst.jsonl is no plain file"),
    "a stranger is cut": State(
        lambda _: a_stranger_is_cut(), "the last record of EngineCore is cut"
    ),
    "no exit code": State(
        lambda _: with_exit(session(process(*CLEAN, End())), None), "run.json has no exit code"
    ),
    "a rank stops in capture": State(
        lambda _: one_stops_at(3), "tp1 ends in init, where its peers went on to serving"
    ),
    "a rank is not shut down": State(
        lambda _: one_stops_at(len(CLEAN), PhaseChange(phase="shutdown")),
        "tp1 ends in serving, where its peers went on to shutdown",
    ),
    "a rank stops long before": State(
        lambda _: stops_long_before(), "tp1 ends 31 s before its peers"
    ),
    "a stranger was refused": State(
        lambda _: a_stranger_was_refused(failure("arena")), "which has no worker record", 1
    ),
    "a stranger asked for more": State(
        lambda _: a_stranger_was_refused(ask(MOE, 1 << 21, "serving", 1 << 20)),
        "which has no worker record",
        1,
    ),
    "a stranger ran out of memory": State(
        lambda _: a_stranger_was_refused(failure("memory")),
        "vLLM ran out of memory for a request for workspace in serving",
    ),
    "fork": State(lambda _: with_exit(a_fork_was_refused(), 0), FORKED, 1),
    "refused": State(
        lambda _: load_run(SAMPLES / "demo-crash"), "sites behind it were not seen", 1
    ),
    "survived": State(
        lambda _: load_run(SAMPLES / "demo-grow"), "t survived 3 escapes (grow)", 1
    ),
}
