"""`wstrace fleet` on what the generator of fleets does not make: a right sentence for each, and
the rest of the fleet as it is."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import wstrace
from tools import ROOT
from tools.fleet.planted import Plan, write_run
from wstrace import __version__
from wstrace.file_names import SUFFIX
from wstrace.findings.analysed_run import load_run

HOUR = 3600 * 10**9
Record = dict[str, Any]


def changed(file: Path, change: Callable[[list[Record]], object]) -> None:
    """A trace file with some of its records changed in place."""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    change(records)
    file.write_text("".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records))


def made(tmp_path: Path, run: str, **more: Any) -> list[Path]:
    return list(write_run(Plan(run=run, **more), tmp_path / "t" / run).files.values())


def rows(tmp_path: Path) -> dict[str, Record]:
    """The fleet's rows by run; a run beside the strange ones is as it always is."""
    made(tmp_path, "beside", ranks=2)
    told = wstrace(
        "fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1", "--format", "json"
    )
    assert (told.returncode, told.stderr) == (0, "")
    found = {row["run"]: row for row in json.loads(told.stdout)["runs"]}
    beside = found.pop("beside")
    assert (beside["verdict"], beside["ranks"], beside["words"]) == ("clean", 2, [])
    return found


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_clock_that_jumps_within_a_run_changes_no_verdict(hours: int, tmp_path: Path) -> None:
    for file in made(tmp_path, "a", ranks=2):
        changed(
            file, lambda records: [r.update(ns=r["ns"] + hours * HOUR) for r in records[7:]]
        )
    row = rows(tmp_path)["a"]
    assert (row["verdict"], row["ranks"], row["words"]) == ("clean", 2, [])


def test_hosts_whose_clocks_are_all_off(tmp_path: Path) -> None:
    for file in made(tmp_path, "a", ranks=4, hosts=4):
        changed(file, lambda records: records[0].update(wall_ns=2 * HOUR))
    row = rows(tmp_path)["a"]
    assert row["verdict"] == "clean"
    assert any("run.json and the workers' hosts are" in word for word in row["words"])
    assert any("before any vLLM that has a workspace" in word for word in row["words"])


def test_two_ends_of_one_run_that_disagree(tmp_path: Path) -> None:
    files = made(tmp_path, "a", ranks=2, hosts=2)
    for number, file in enumerate(sorted(files)):
        end = {"run": "a", "command": ["vllm"], "started": "2026-05-28T20:26:40+00:00"}
        end |= {"ended": "2026-05-28T20:36:40+00:00", "wstrace": __version__}
        (file.parent / "run.a.json").write_text(json.dumps(end | {"exit_code": number}))
    row = rows(tmp_path)["a"]
    assert row["verdict"] == "inconclusive"
    (word,) = row["words"]
    assert word.startswith("the command ended with exit code 1")


def test_a_socket_and_a_device_are_no_records(tmp_path: Path) -> None:
    files = made(tmp_path, "a", ranks=2)
    folder = files[0].parent
    for name in ("a.host.1.2.ff.wst.jsonl", "x.log"):
        with socket.socket(socket.AF_UNIX) as bound:
            home = os.open(folder, os.O_RDONLY)
            bound.bind(f"/proc/self/fd/{home}/{name}")
            os.close(home)
    (folder / "a.host.1.3.ff.wst.jsonl").symlink_to("/dev/zero")
    row = rows(tmp_path)["a"]
    assert (row["verdict"], row["ranks"]) == ("inconclusive", 2)
    assert sum("no plain file" in word for word in row["words"]) == 2


def test_a_log_in_a_cut_archive(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    data = os.urandom(4000).hex().encode() + (ROOT / "tests/data/docs/pasted.log").read_bytes()
    whole = gzip.compress(data)
    (tmp_path / "t" / "cut.log.gz").write_bytes(whole[: len(whole) // 2])
    row = rows(tmp_path)["cut.log.gz"]
    assert row["kind"] == "unread"
    assert "Compressed file ended before the end-of-stream marker" in row["sentence"]


def test_one_log_under_several_names(tmp_path: Path) -> None:
    """Compressed, renamed, and in another folder; one that differs is another log."""
    folder = tmp_path / "t"
    (folder / "again").mkdir(parents=True)
    data = (ROOT / "tests/data/docs/pasted.log").read_bytes()
    for name in ("serve.log", "again/serve.log", "z-other.log"):
        (folder / name).write_bytes(data)
    (folder / "serve.log.gz").write_bytes(gzip.compress(data))
    (folder / "serve.log.xz").write_bytes(lzma.compress(data))
    (folder / "serve.log.bz2").write_bytes(bz2.compress(data))
    (folder / "more.log").write_bytes(data + b"and more\n")
    found = rows(tmp_path)
    assert {name: row["words"] for name, row in found.items()} == {
        "serve.log": ["6 files hold this log: counted once"],
        "more.log": [],
    }


def test_a_log_of_two_models_says_so(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    data = (ROOT / "tests/data/docs/pasted.log").read_text()
    (tmp_path / "t" / "a.log").write_text(data + data.replace("/srv/q3", "/srv/other"))
    row = rows(tmp_path)["a.log"]
    (word,) = row["words"]
    assert word.startswith("this text is of engines of 2 models (q3, other): settings and")


DUMPED = (
    "(EngineCore_DP0 pid=2452) INFO 11-27 21:27:41 [core.py:93] Initializing a V1 LLM engine "
    "(v{}) with config: model='{}', speculative_config=None, dtype=torch.bfloat16\n"
)
REFUSED = (
    "AssertionError: Workspace is locked but allocation from "
    "'turboquant_attn.py:906:_continuation_prefill' requires {} MB, current size is 2.05 MB. "
    "Workspace growth is not allowed after locking.\n"
)


@pytest.mark.parametrize(
    ("engines", "said"),
    [
        ((("0.21.0", "Qwen3-4B"), ("0.24.0", "Llama-8B")), "2 models (Qwen3-4B, Llama-8B) and"),
        ((("0.24.0", "Qwen3-4B"), ("0.21.0", "Llama-8B")), "2 models (Qwen3-4B, Llama-8B) and"),
        ((("0.21.0", "m"), ("0.24.0", "m")), "2 versions of vLLM (0.21.0, 0.24.0): settings"),
        ((("0.21.0", "a"), ("0.21.0", "b")), "2 models (a, b): settings"),
    ],
)
@pytest.mark.parametrize("sizes", [("9.94", "12.00"), ("12.00", "9.94"), ("9.94", "")])
def test_a_log_of_two_engines_names_no_pair_that_never_ran(
    engines: tuple[tuple[str, str], ...], said: str, sizes: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    texts = [
        DUMPED.format(*engine) + (REFUSED.format(size) if size else "INFO ok\n")
        for engine, size in zip(engines, sizes, strict=True)
    ]
    (tmp_path / "t" / "seq.log").write_text("".join(texts))
    words = ("fleet", str(tmp_path / "t"), "--no-cache", "--format", "json", "--jobs", "1")
    told = json.loads(wstrace(*words).stdout)
    (row,) = told["runs"]
    ran = {(model, version) for version, model in engines}
    assert (row["model"], row["vllm"]) in ran
    assert said in row["words"][0]
    died = [engine for engine, size in zip(engines, sizes, strict=True) if size]
    assert {(e["model"], e["vllm"]) for e in told["escapes"]} == {(m, v) for v, m in died}
    assert {(v["model"], v["vllm"]) for v in told["versions"]} <= ran


def test_of_equal_requests_a_site_has_the_smaller_arena(tmp_path: Path) -> None:
    """The first rank has the larger one."""
    small, large = made(tmp_path, "a", ranks=2, fault="small rank")
    for place, file in enumerate((large, small)):

        def placed(records: list[Record], place: int = place) -> None:
            for record in records:
                if record["t"] == "worker":
                    record["ranks"].update(tp=place, rank=place)

        changed(file, placed)
    run = load_run(tmp_path / "t" / "a" / "node0")
    assert [worker.ranks.tp for worker in run.workers] == [0, 1]
    (site,) = [s for s in run.sites if s.key.function == "FleetImpl._continuation_prefill"]
    first, second = (use.arena for _, use in site.uses)
    assert first > second == site.arena_bytes


def test_of_equal_arenas_the_rank_that_asked_for_most_is_named(tmp_path: Path) -> None:
    _, second = made(tmp_path, "a", ranks=2)
    grow = [("request", "serving")]
    changed(
        second,
        lambda records: [
            r.update(bytes=r["bytes"] + (8 << 20))
            for r in records
            if (r["t"], r.get("phase")) in grow
        ],
    )
    assert rows(tmp_path)["a"]["largest_rank"] == "tp1"


def test_host_folders_in_folders(tmp_path: Path) -> None:
    write_run(Plan(run="a", ranks=8, hosts=4), tmp_path / "t" / "day" / "rack" / "launch")
    row = rows(tmp_path)["a"]
    assert (row["verdict"], row["ranks"], row["hosts"], row["words"]) == ("clean", 8, 4, [])


def test_a_folder_that_is_no_trace_says_so_of_each_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "other"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"experiment": 1}')
    (folder / "z.wst.jsonl").write_text('{"k": "v"}\n')
    found = rows(tmp_path)
    assert "z.wst.jsonl is not a wstrace trace" in found["z.wst.jsonl"]["sentence"]
    assert "missing required field `run`" in found["run.json"]["sentence"]


@pytest.mark.parametrize("lost", ["tail", "file"])
def test_what_run_json_says_of_sizes_counts_as_for_report_and_gate(
    lost: str, tmp_path: Path
) -> None:
    """A refusal in the records that are gone: the row was clean, where the gate was not."""
    file, other = made(tmp_path, "a", ranks=2, fault="survived")
    folder = file.parent
    (end,) = folder.glob("run*.json")
    told = json.loads(end.read_text())
    told["sizes"] = {f.name: f.stat().st_size for f in (file, other)}
    end.write_text(json.dumps(told))
    for one in (file, other):
        lines = one.read_bytes().splitlines(keepends=True)
        one.write_bytes(b"".join(lines[:8]))
    if lost == "file":
        other.unlink()
    row = rows(tmp_path)["a"]
    assert row["verdict"] == "inconclusive"
    assert wstrace("gate", str(folder)).returncode == 3
    said = "is gone" if lost == "file" else "bytes when the command ended, and has"
    assert any(said in word for word in row["words"])


def test_compressed_records_are_told_and_their_run_is_found(tmp_path: Path) -> None:
    (file,) = made(tmp_path, "a", ranks=1)
    packed = file.with_name(f"a.host.7.1.ff{SUFFIX}.gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    file.rename(file.with_name("kept"))
    assert "is compressed, and was not read" in rows(tmp_path)["a"]["sentence"]


def test_a_run_id_as_long_as_a_page(tmp_path: Path) -> None:
    (file,) = made(tmp_path, "a")
    changed(file, lambda records: records[0].update(run="R" * 5000))
    row = rows(tmp_path)["R" * 5000]
    assert (row["verdict"], row["ranks"]) == ("clean", 1)
    site = tmp_path / "site"
    words = ("fleet", str(tmp_path / "t"), "--no-cache", "--jobs", "1", "-o", str(site))
    assert wstrace(*words).returncode == 0
    assert any(page.name.startswith("RRR") for page in (site / "runs").iterdir())


def test_two_versions_of_vllm_in_one_run(tmp_path: Path) -> None:
    _, second = made(tmp_path, "a", ranks=2)
    changed(second, lambda records: records[0].update(vllm="0.21.0"))
    row = rows(tmp_path)["a"]
    assert row["vllm"] == "0.21.0, 0.32.0"
    assert row["verdict"] == "inconclusive"
    assert row["words"] == ["the workers have different vLLM versions: 0.21.0, 0.32.0"]


@pytest.mark.parametrize(
    ("form", "version", "advice"),
    [
        (99, "9.9.9", "Use the wstrace that wrote it (9.9.9), or a newer one."),
        (0, "0.0.1", "Use the wstrace that wrote it (0.0.1)."),
        (
            99,
            __version__,
            f"It names wstrace {__version__}, as this one does: use the build that wrote it.",
        ),
    ],
)
def test_a_trace_of_another_wstrace(
    form: int, version: str, advice: str, tmp_path: Path
) -> None:
    (file,) = made(tmp_path, "a")
    changed(file, lambda records: records[0].update(format=form, wstrace=version))
    row = rows(tmp_path)["a"]
    assert row["kind"] == "unread"
    assert f"has trace format {form}, this wstrace reads 1" in row["sentence"]
    told = wstrace("report", str(file))
    assert (told.returncode, told.stderr.splitlines()[1]) == (2, advice)
