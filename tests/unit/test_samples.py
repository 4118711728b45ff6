"""The sample traces still say what the table beside them states, and so do their reports.

The table's bytes are checked here against arithmetic on the runs' settings: prompts are
scheduled in chunks, a continuation asks for 2 buffers of heads * cached tokens * head size
in 2-byte elements, DCP for tokens * heads * head size of them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from wstrace.findings.analysed_run import AnalysedRun, load_run

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLES: Final = ROOT / "sample_traces"
README: Final = SAMPLES / "README.md"
NAMES: Final = sorted(path.parent.name for path in SAMPLES.glob("*/run.json"))
ESCAPES: Final = ("WS101", "WS102", "WS104", "WS301")
H100: Final = 2 * 4 * 128 * 2  # bytes a cached token: K and V, 4 heads of 128, 2 bytes each
DEMO: Final = 2 * 4 * 64 * 2
MOE: Final = 2 * 8 * 2048 * 2  # bytes a token: 2 buffers, 8 experts, 2048 wide, 2 bytes each
LATENT_MOE: Final = 2 * 4 * 2048 * 2  # the same of the MLA models, with 4 experts a token
DCP: Final = 16 * 128 * 2  # bytes a token: 16 query heads over the group

# A gather of 4 prefills: a row is 512 wide, 2 bytes an element; the window and a step's tokens
# come on top of the compressed pool, a quarter of max_model_len.
GATHER: Final = 4 * 512 * 2
DSV4: Final = (16384 // 4 + 128 + 2048) * GATHER
DSV4_LONG: Final = (65536 // 4 + 128 + 2048) * GATHER


def crowd(steps: int) -> int:
    """vLLM 0.26: eight prompts in one gather after so many steps of 256 tokens each."""
    return 8 * (steps * 256 // 4 + 256 + 127) * 512 * 2


ASKED: Final = {
    "demo-crash": 256 * DEMO,  # the second chunk of 256
    "demo-grow": 8 << 20,  # a constant buffer of 8 MiB
    "demo-reserved": 1792 * DEMO,  # 7 chunks of 256 before the last
    "h100-vllm-0.21.0-turboquant-crash": 4096 * H100,
    "h100-vllm-0.21.0-turboquant-grow": 7 * 4096 * H100,  # of 30,000 tokens
    "h100-vllm-0.21.0-turboquant-grow-6000": 4096 * H100,
    "h100-vllm-0.21.0-turboquant-reserved": 7 * 4096 * H100,  # of 32,760 tokens
    "h100-vllm-0.26.0-turboquant-chunked": 7 * 4096 * H100,
    "h100-vllm-0.26.0-turboquant-prefix": 10976 * H100,
    "h100-vllm-0.26.0-turboquant-reserved-prefix": 10976 * H100,
    "h200-vllm-0.21.0-moe": 4096 * MOE,
    "h200-vllm-0.21.0-moe-fp8": 4096 * MOE,
    "h200-vllm-0.21.0-moe-mxfp4": 4096 * MOE,  # 720 padded to 768: hidden_size is wider still
    "h200-vllm-0.21.0-moe-ngram": 4096 * MOE,
    "h200-vllm-0.21.0-turboquant-guarded": 7 * 4096 * H100,  # of 32,728 tokens
    "h200-vllm-0.22.1-dsv4-crash": DSV4,
    "h200-vllm-0.22.1-dsv4-grow": DSV4,
    "h200-vllm-0.22.1-dsv4-hidden": DSV4_LONG,
    "h200-vllm-0.22.1-dsv4-reserved": DSV4,
    "h200-vllm-0.26.0-dsv4-crash": crowd(38),  # the arena holds 37 steps
    "h200-vllm-0.26.0-dsv4-grow": crowd(43),  # the most that one chunk's area holds
    "h200-vllm-0.26.0-dsv4-hidden": (1280 // 4 + 256 + 127) * 512 * 2,  # one prompt of 1,300
    "h200-vllm-0.26.0-dsv4-reserved": crowd(43),
    "h200-vllm-0.26.0-mla": 4096 * LATENT_MOE,
    "h200-vllm-0.26.0-sparse-mla": 4096 * LATENT_MOE,
    "h200x2-vllm-0.21.0-moe-dp2": 2 * 4096 * MOE,  # each rank has gathered both ranks' tokens
    "h200x2-vllm-0.21.0-tp-grow": 7 * 4096 * H100 // 2,  # each of two ranks, of 30,000 tokens
    "h200x2-vllm-0.21.0-tp-reserved": 7 * 4096 * H100 // 2,
    "h200x2-vllm-0.21.0-dcp-crash": 1000 * DCP,
    "h200x2-vllm-0.21.0-dcp-grow": 4096 * DCP,
}
NEEDS: Final = {
    "demo": 2048 * DEMO,
    "h100-vllm-0.21.0": 32768 * H100,
    "h100-vllm-0.26.0-turboquant-chunked": 32768 * H100,
    "h100-vllm-0.26.0": 16384 * H100,
    "h200-vllm-0.21.0-moe": 4096 * MOE,
    "h200-vllm-0.21.0-turboquant": 32768 * H100,
    "h200-vllm-0.22.1-dsv4-hidden": DSV4_LONG,
    "h200-vllm-0.22.1-dsv4": DSV4,
    "h200-vllm-0.26.0-dsv4-hidden": DSV4_LONG,
    "h200-vllm-0.26.0-dsv4": DSV4,
    "h200-vllm-0.26.0": 4096 * LATENT_MOE,
    "h200x2-vllm-0.21.0-moe": 2 * 4096 * MOE,
    "h200x2-vllm-0.21.0-tp": 32768 * H100 // 2,
    "h200x2": 4096 * DCP,
}


def stated() -> dict[str, tuple[str, str, int, int]]:
    """The README's rows: code, function, asked and needed bytes, by trace."""
    rows = re.findall(
        r"^\| \[([\w.-]+)\]\(\1/report\.md\) \| (WS\d+|none) \| `(\w+)` "
        r"\| ([\d,]+) \| ([\d,]+) \|",
        README.read_text(),
        re.MULTILINE,
    )
    return {
        r[0]: (r[1], r[2], int(r[3].replace(",", "")), int(r[4].replace(",", ""))) for r in rows
    }


def load(name: str) -> AnalysedRun:
    return load_run(SAMPLES / name)


def needed(name: str) -> int:
    if name == "demo-grow":
        return 8 << 20
    return next(size for start, size in NEEDS.items() if name.startswith(start))


def test_the_readme_lists_every_trace() -> None:
    assert sorted(stated()) == NAMES == sorted(ASKED)


@pytest.mark.parametrize("name", NAMES)
def test_the_stated_numbers_are_those_of_the_settings(name: str) -> None:
    _, _, asked, need = stated()[name]
    assert (asked, need) == (ASKED[name], needed(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_says_what_is_stated(name: str) -> None:
    code, function, asked, need = stated()[name]
    session = load(name)
    sites = [s for s in session.sites if s.key.function.endswith(function)]
    assert [s.serving_bytes for s in sites] == [asked]
    assert [s.bound.bytes for s in sites if s.bound is not None] == [need]
    assert [f.code for f in session.findings][:1] == [code] * (code != "none")


@pytest.mark.parametrize("name", NAMES)
def test_only_runs_without_a_reserve_escape(name: str) -> None:
    codes = {f.code for f in load(name).findings}
    cured = "reserved" in name or "-moe" in name
    cured = cured or name.endswith(("chunked", "mla", "hidden"))
    assert bool(codes & set(ESCAPES)) is not cured


@pytest.mark.parametrize("name", NAMES)
def test_no_real_request_contradicts_a_rule(name: str) -> None:
    assert [(s.key, s.bound.refuted) for s in load(name).sites if s.bound.refuted] == []


def test_prefix_caching_replaced_the_arena_twice_in_serving() -> None:
    (view,) = load("h100-vllm-0.26.0-turboquant-prefix").workers
    sizes = [g.after for g in view.growths if g.phase == "serving"]
    assert sizes == [8992 * H100, 10976 * H100] == [18_415_616, 22_478_848]


def test_two_gpus_are_two_ranks() -> None:
    for name in (name for name in NAMES if name.startswith("h200x2")):
        assert len(load(name).workers) == 2


def test_experts_on_gpus_need_to_the_byte_what_warm_up_made_room_for() -> None:
    """A bound above the arena would be a false alarm: these servers cannot ask for more."""
    for name in (name for name in NAMES if "-moe" in name or name.endswith("sparse-mla")):
        session = load(name)
        assert [(f.code, f.site) for f in session.findings] == []
        (experts,) = [s for s in session.sites if s.key.function.endswith("_allocate_buffers")]
        assert experts.bound.bytes == experts.arena_bytes
        assert experts.bound.known_site == "moe.triton"


def test_the_reserve_cost_the_kv_cache_its_bytes() -> None:
    """The crash's server is the one without a reserve that was sized with warm caches."""
    found = [
        load(f"h100-vllm-0.21.0-turboquant-{name}").workers[0].memory.available_kv_bytes
        for name in ("crash", "reserved")
    ]
    assert found == [15_931_759_821, 15_931_759_821 - 32768 * H100]


def test_a_stale_table_of_the_gpu_runs_would_be_seen() -> None:
    """Every claim that failed is in one of the pages as one, none as held."""
    page = "".join((ROOT / "docs" / name).read_text() for name in ("gpu.md", "overhead.md"))
    kept = [json.loads(p.read_text()) for p in sorted((SAMPLES / "gpu-tables").glob("*.json"))]
    claims = [c for table in kept for c in table["claims"]]
    marks = [c["ok"] for c in claims]
    assert page.count("| yes |") == marks.count(True)
    assert page.count("| **no** |") == marks.count(False)
    assert page.count("| not run |") == marks.count(None)


@pytest.mark.parametrize("path", sorted(SAMPLES.rglob("*.*")), ids=lambda p: p.name)
def test_no_sample_names_the_machine_it_was_made_on(path: Path) -> None:
    if path.is_file() and path.suffix != ".html":
        text = path.read_text()
        assert re.findall(r'(?<![\w/.])/(?:tmp|home|root|opt|work|mnt)/[^"\s]*', text) == []
        assert '"host":"vm"' not in text
