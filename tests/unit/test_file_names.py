"""Names that anybody could have chosen name one file each, and a trace's files are known."""

from __future__ import annotations

import pytest

from wstrace.file_names import (
    kept_run_file,
    name_of_its_own,
    named_run,
    part_of_name,
    process_file,
    trace_file_kind,
)

HOSTILE = ("../../etc/passwd", "a/b", "", "..", "Ωμέγα", "\udcff", "a\nb", "x" * 5000, "CON:1")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_leads_out_of_its_folder(text: str) -> None:
    names = (
        part_of_name(text),
        kept_run_file(text),
        name_of_its_own(text, "model"),
        process_file(text, text, 41, 1795830203879311338, "2fa811b7"),
    )
    for name in names:
        assert "/" not in name
        assert name.isascii()
        assert len(name) <= 255  # the most that ext4 and xfs take
    assert names[2] not in (".", "..", "")


def test_other_texts_have_other_names() -> None:
    names = {name_of_its_own(text, "model", 20) for text in (*HOSTILE, "a-b", "x" * 4999)}
    assert len(names) == len(HOSTILE) + 2
    assert name_of_its_own("Qwen/Qwen3-8B", "model").startswith("Qwen-Qwen3-8B-")


@pytest.mark.parametrize("run", ["20261128T014238Z-4bd7e681", "nightly-2026", "a.b"])
def test_a_file_of_a_process_says_its_run(run: str) -> None:
    name = process_file(run, "gpu-7.example.org", 30091, 1795830203879311338, "2fa811b7")
    assert name == f"{run}.gpu-7-example-org.30091.1795830203879311338.2fa811b7.wst.jsonl"
    assert trace_file_kind(name) == "records"
    assert named_run(name) == run
    assert named_run(kept_run_file(run)) == run


@pytest.mark.parametrize("name", ["run.yaml", "prun.json", "run.jsonl", "gathered.json", "run"])
def test_other_files_are_of_no_trace(name: str) -> None:
    assert trace_file_kind(name) is None
