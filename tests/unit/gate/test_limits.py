"""[tool.wstrace]: found upward, checked strictly, and kept by the run or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.gate import traces
from tests.unit.gate.conftest import Gate

ARENA = traces.CONTINUATION_BOUND  # 4 MiB: the arena of a clean run


def _config(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.wstrace]\n{text}\n")


@pytest.mark.parametrize(
    ("arena", "code"),
    [
        ('"*qwen3*" = "4MiB"', 0),
        (f'"*qwen3*" = {ARENA - 1}', 1),
        ('"llama*" = "1KiB"', 0),
        ('"*" = "1KiB"', 1),
        ('"tiny-*" = "4MiB"\n"*" = "1KiB"', 0),  # the first that matches counts
        ('"*" = "1KiB"\n"tiny-*" = "4MiB"', 1),
    ],
)
def test_arena_bytes_by_model(arena: str, code: int, gate: Gate, tmp_path: Path) -> None:
    _config(tmp_path, f"[tool.wstrace.arena]\n{arena}")
    found, text = gate(traces.clean(tmp_path / "t"))
    assert found == code, text
    assert ("limit/arena" in text) == bool(code)


@pytest.mark.parametrize(
    ("site", "code"),
    [
        ('"vllm/v1/attention/*:*" = "4MiB"', 0),
        ('"vllm/v1/attention/*:*" = "4095KiB"', 1),
        ('"*:TinyImpl._continuation_prefill" = "1MiB"', 1),
    ],
)
def test_request_bytes_by_site(site: str, code: int, gate: Gate, tmp_path: Path) -> None:
    _config(tmp_path, f"[tool.wstrace.sites]\n{site}")
    found, text = gate(traces.clean(tmp_path / "t"))
    assert found == code, text
    assert ("limit/site" in text) == bool(code)


def test_a_glob_that_matches_no_site_is_told(gate: Gate, tmp_path: Path) -> None:
    _config(tmp_path, '[tool.wstrace.sites]\n"vllm/typo.py:*" = "1MiB"')
    code, text = gate(traces.clean(tmp_path / "t"))
    assert code == 0
    assert "'vllm/typo.py:*' matches no site" in text


@pytest.mark.parametrize(("require", "code"), [("proved", 1), ("fitted", 1), ("observed", 0)])
def test_grades(require: str, code: int, gate: Gate, tmp_path: Path) -> None:
    """The neighbour of the latent run is a site without provenance: its bound is observed."""
    _config(tmp_path, f'require = "{require}"')
    trace = traces.latent(tmp_path / "t", ARENA)
    found, text = gate(trace)
    assert found == code, text
    assert ("TinyMoE.forward" in text and "limit/grade" in text) == bool(code)
    assert gate(traces.clean(tmp_path / "proved"))[0] == 0


@pytest.mark.parametrize(
    "words",
    [("--tolerance", "0.1"), ("--min-exercise", "reqs=0.5"), ("--tolerance", "1.5B")],
)
def test_a_fraction_is_no_number_of_bytes(
    words: tuple[str, str], gate: Gate, tmp_path: Path
) -> None:
    """0.1 was 0 bytes: it asked for nothing, where a share was meant."""
    code, text = gate(traces.clean(tmp_path / "t"), *words)
    assert code == 2
    assert "Not a number or a share" in text


@pytest.mark.parametrize(("ranks", "code"), [(1, 0), (2, 3)])
def test_required_ranks(ranks: int, code: int, gate: Gate, tmp_path: Path) -> None:
    _config(tmp_path, f"ranks = {ranks}")
    assert gate(traces.clean(tmp_path / "t"))[0] == code


def test_options_of_the_file_and_of_the_command_line(gate: Gate, tmp_path: Path) -> None:
    """The file's values count, the command line's win, `baseline` is relative to the file."""
    trace = traces.escape(tmp_path / "t")
    gate(trace, "--write-baseline", "known.jsonl")
    _config(tmp_path, 'baseline = "known.jsonl"\nfail-on = "WS101"\nmin-exercise = "reqs=2"')
    assert gate(trace)[0] == 0
    assert gate(trace, "--min-exercise", "reqs=3")[0] == 3
    _config(tmp_path, 'fail-on = "none"')
    assert gate(trace)[0] == 0
    assert gate(trace, "--fail-on", "error")[0] == 1
    _config(tmp_path, "allow-unlocked = true")
    assert gate(traces.eager(tmp_path / "e"))[0] == 0


def test_the_nearest_table_upward_counts(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pyproject.toml without the table does not hide the one above it."""
    trace = traces.clean(tmp_path / "t")
    _config(tmp_path, '[tool.wstrace.arena]\n"*" = "1KiB"')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text('[project]\nname = "x"\n')
    monkeypatch.chdir(inner)
    assert gate(trace)[0] == 1
    _config(inner, '[tool.wstrace.arena]\n"*" = "1GiB"')
    assert gate(trace)[0] == 0
    assert gate(trace, "--config", tmp_path / "pyproject.toml")[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        'arenas = "1MiB"',
        'arena = "1MiB"',
        '[tool.wstrace.arena]\n"*" = "big"',
        '[tool.wstrace.arena]\n"*" = true',
        'require = "sure"',
        "ranks = 0",
        "ranks = true",
        "fail-on = 1",
        'fail-on = "nonsense"',
        "not toml at all",
    ],
)
def test_a_wrong_table_exits_2(text: str, gate: Gate, tmp_path: Path) -> None:
    _config(tmp_path, text)
    assert gate(traces.clean(tmp_path / "t"))[0] == 2


def test_violations_are_in_the_json(gate: Gate, tmp_path: Path) -> None:
    _config(tmp_path, '[tool.wstrace.arena]\n"*" = "1KiB"')
    _, text = gate(traces.clean(tmp_path / "t"), "--format", "json")
    judged = json.loads(text)
    assert judged["verdict"] == "findings"
    (broken,) = judged["limits"]
    assert (broken["rule"], broken["bytes"], broken["limit_bytes"]) == (
        "limit/arena",
        ARENA,
        1024,
    )
