"""Who is named: by vLLM's label, a launcher's prefix, the name of a file or of a member."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.unit.triage.generator import Failure, log_lines, log_of, read
from wstrace.report.triage import render_json, render_text
from wstrace.trace.records import Ranks
from wstrace.triage.diagnose.numbers import Given
from wstrace.triage.ingest.ranks import merged, of_one_process, ranks_of_file, ranks_of_prefix
from wstrace.triage.report import read as triage

if TYPE_CHECKING:
    from pathlib import Path

LINES = [f"AssertionError: {Failure().message}"]
FILES = [
    ("rank0.log", Ranks(rank=0)),
    ("logs/rank3.log", Ranks(rank=3)),
    ("rank_12.txt", Ranks(rank=12)),
    ("vllm-rank-2.2026-05-05.log", Ranks(rank=2)),
    ("worker-3.log", Ranks(rank=3)),
    ("worker3.out", Ranks(rank=3)),
    ("vllm_worker_5.stderr", Ranks(rank=5)),
    ("rank1/stderr.log", Ranks(rank=1)),
    ("run/attempt_0/3/stderr.log", Ranks(rank=3)),
    ("node1/rank0.log", Ranks(rank=0, node=1)),
    ("node-1_rank-0.log", Ranks(rank=0, node=1)),
    ("host2/logs/worker-7.log", Ranks(rank=7, node=2)),
    ("node1.log", Ranks(node=1)),
    ("C:\\logs\\node1\\rank0.log", Ranks(rank=0, node=1)),
    ("Worker_TP3.log", Ranks(tp=3)),
    ("Worker_DP1_TP2_EP10.log", Ranks(dp=1, tp=2, ep=10)),
    ("Worker-TP1.log.1", Ranks(tp=1)),
    # what a name says of the run, not of a process
    ("llama-tp8.log", Ranks()),
    ("qwen-dp2-tp4.log", Ranks()),
    ("workers8.log", Ranks()),
    ("rankings3.log", Ranks()),
    ("rerank0.log", Ranks()),
    ("server.log", Ranks()),
    ("-", Ranks()),
]


@pytest.mark.parametrize(("name", "ranks"), FILES)
def test_the_name_of_a_file(name: str, ranks: Ranks) -> None:
    assert ranks_of_file(name) == ranks


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: {}", 3),
        ("[rank12]:{}", 12),
        ("[default1]: {}", 1),
        ("[trainer2]: {}", 2),
        ("2026-05-05T14:02:37Z [rank3]: {}", 3),
        ("vllm-1  | [rank3]: {}", 3),
        ("[rank0]:[rank3]: {}", 0),
        ("[1,3]<stderr>:{}", 3),
        ("logs/rank3.log:181:{}", 3),
        ("worker-3.log.1-7-{}", 3),
        ("[frank3]: {}", None),
        ("server.log:181:{}", None),
    ],
)
def test_a_launchers_prefix(prefix: str, rank: int | None) -> None:
    (finding,) = read("\n".join(prefix.format(line) for line in LINES)).findings
    assert finding.ranks == ((Ranks(rank=rank),) if rank is not None else ())


def test_the_file_that_tail_names() -> None:
    text = "\n\n".join(f"==> logs/rank{n}.log <==\n{LINES[0]}" for n in (0, 3))
    assert [f.ranks for f in read(text).findings] == [(Ranks(rank=0),), (Ranks(rank=3),)]


def test_a_record_that_names_the_rank() -> None:
    (finding,) = read(json.dumps({"rank": 5, "msg": LINES[0]})).findings
    assert finding.ranks == (Ranks(rank=5),)


def test_ranks_of_a_prefix_stay_apart() -> None:
    text = "\n".join(f"[rank{n}]: {line}" for n in range(4) for line in LINES)
    found = read(text).findings
    assert [f.ranks for f in found] == [(Ranks(rank=n),) for n in range(4)]


@pytest.mark.parametrize("label", ["Worker_TP1 pid=7", "Worker_PP0_TP1_EP1 pid=7"])
def test_vllms_own_label_comes_first(label: str) -> None:
    """PyTorch's hook prints the same failure again, with the number among all."""
    text = "\n".join([*log_lines(LINES, label), f"[rank1]: {LINES[0]}"])
    (finding,) = read(text).findings
    (ranks,) = finding.ranks
    assert (ranks.tp, ranks.rank) == (1, None)


def test_another_rank_is_another_one() -> None:
    text = "\n".join([*log_lines(LINES, "Worker_TP1 pid=7"), f"[rank2]: {LINES[0]}"])
    assert [f.ranks for f in read(text).findings] == [(Ranks(tp=1),), (Ranks(rank=2),)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Ranks(rank=1), Ranks(tp=1), True),
        (Ranks(rank=1), Ranks(tp=2), False),
        (Ranks(rank=3), Ranks(pp=1, tp=1), True),
        (Ranks(rank=0), Ranks(pp=1, tp=1), False),
        (Ranks(rank=1), Ranks(), True),
        (Ranks(rank=1), Ranks(rank=2), False),
        (Ranks(rank=0, node=1), Ranks(rank=0, node=0), False),
        (Ranks(rank=1, node=1), Ranks(tp=1), True),
        (Ranks(tp=1), Ranks(tp=1, ep=1), True),
        (Ranks(tp=1), Ranks(tp=2, ep=2), False),
    ],
)
def test_whether_two_may_be_one_process(one: Ranks, other: Ranks, same: bool) -> None:
    assert of_one_process(one, other) is same
    assert of_one_process(other, one) is same


def test_the_number_among_all_goes_where_a_group_is_named() -> None:
    assert merged(Ranks(rank=3, node=1), Ranks(tp=3)) == Ranks(tp=3, node=1)
    assert merged(Ranks(rank=3), Ranks()) == Ranks(rank=3)
    assert ranks_of_prefix("vllm-1 rank3") == Ranks(rank=3)
    assert ranks_of_prefix("frank3 x") == Ranks()


def test_a_log_a_rank_is_one_incident(tmp_path: Path) -> None:
    for node in (0, 1):
        folder = tmp_path / f"node{node}"
        folder.mkdir()
        for rank in (0, 1):
            (folder / f"rank{rank}.log").write_text(LINES[0])
    report = triage([str(tmp_path)], Given())
    (incident,) = report.incidents
    assert set(incident.ranks) == {Ranks(rank=r, node=n) for r in (0, 1) for n in (0, 1)}
    assert "node 1 rank 0" in render_text(report)
    (told,) = json.loads(render_json(report))["incidents"]
    assert {(r["node"], r["rank"]) for r in told["ranks"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_log_of_a_host_names_the_host(tmp_path: Path) -> None:
    path = tmp_path / "node1.log"
    path.write_text(LINES[0])
    assert ", node 1\n" in render_text(triage([str(path)], Given()))


def test_the_label_in_a_file_of_another_rank(tmp_path: Path) -> None:
    """A file of a host holds all its workers: their own labels count."""
    path = tmp_path / "rank0.log"
    path.write_text("\n".join(log_lines(LINES, "Worker_TP3 pid=7")))
    (finding,) = triage([str(path)], Given()).findings
    assert finding.ranks == (Ranks(tp=3),)


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_the_members_of_an_archive(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"logs.{kind}"
    members = {f"job/rank{n}.log": LINES[0] for n in range(4)}
    _packed(path, members)
    report = triage([str(path)], Given())
    (incident,) = report.incidents
    assert incident.ranks == tuple(Ranks(rank=n) for n in range(4))


def test_a_thread_in_an_archive_is_named_by_its_member(tmp_path: Path) -> None:
    path = tmp_path / "issues.zip"
    comments = [{"body": "me too"}, {"body": f"{LINES[0]}\nFixed by --enforce-eager"}]
    issue = {"title": "It dies", "body": "see below", "comments": comments}
    _packed(path, {"issues/7.json": json.dumps(issue)})
    report = triage([str(path)], Given())
    (finding,) = report.findings
    assert log_of(finding).part == "issues/7.json: comment 2"
    assert report.worked[0].part == "issues/7.json: comment 2"


def _packed(path: Path, members: dict[str, str]) -> None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in members.items():
                archive.writestr(name, text)
        return
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
