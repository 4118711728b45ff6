"""DeepSeek-V4's sites of vLLM 0.22.1, whose class no rule names: its own source and calls.

The numbers are report 41700's on an H200: max_model_len 16384, a budget of 2048, compress_ratio
4, a window of 128, heads of 512: 4 * (16384 / 4 + 128 + 2048) rows of 512 bf16; a layer with a
window only gathers 4 * (128 + 2048). The indexer's gather: 163,840 rows of 128 fp8 and a float.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.wheels import UnavailableError, python_files
from wstrace.bounds.ways import bound_site
from wstrace.expr.expression import parse
from wstrace.slicer.static import survey
from wstrace.trace.records import Request, Slot

pytestmark = pytest.mark.matrix
VERSION = "0.22.1"
FLASH = "vllm/models/deepseek_v4/nvidia/flashmla.py"
INDEXER = "vllm/model_executor/layers/sparse_attn_indexer.py"
CLASS = "DeepseekV4FlashMLASparseImpl"
GATHER, WINDOW = 25_690_112, 8_912_896
ROWS, TOPK = 163_840 * 128 + 163_840 * 4, 1 << 20
ASKED = {
    f"{CLASS}.forward_mqa": {GATHER},
    f"{CLASS}._forward_prefill": {GATHER, WINDOW},
    "sparse_attn_indexer": {ROWS + TOPK, ROWS},
}
LIMITS = {
    "max_model_len": 16384,
    "max_num_batched_tokens": 2048,
    "sliding_window": 128,
    "head_size": 512,
    "compress_ratio": 4,
    "index_head_dim": 128,
    "max_num_seqs": 256,
}


def sources() -> Path:
    try:
        return python_files(VERSION)
    except UnavailableError as error:
        pytest.fail(f"vLLM {VERSION} cannot be had: {error}", pytrace=False)


@cache
def live() -> list[dict[str, Any]]:
    """Every request that the real functions make, with what the slicer says of it."""
    command = [sys.executable, "-m", "tests.matrix.differential.live_v4", str(sources())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("function", ASKED)
def test_the_slicer_closes_the_running_function(function: str) -> None:
    """A dimension of q, which a C extension makes, is assumed constant, and two sizes of step
    show it at 512; every other name is a constant by the source."""
    mine = [request for request in live() if request["function"] == function]
    assert {request["bytes"] for request in mine} == ASKED[function]
    assert [request["stopped"] for request in mine] == [None] * len(mine)
    assumed = {(n, kind, value) for r in mine for n, kind, _, value, why in r["leaves"] if why}
    expected = set() if function == "sparse_attn_indexer" else {("constant", 512)}
    assert {leaf[1:] for leaf in assumed} == expected
    for request in mine:
        values = {name: value for name, _, _, value, _ in request["leaves"]}
        assert parse(request["formula"]).evaluate(values) >= request["bytes"]


@pytest.mark.parametrize(
    ("file", "function", "bound", "rule"),
    [
        (FLASH, f"{CLASS}.forward_mqa", GATHER, "deepseek_v4.prefill_gather"),
        (FLASH, f"{CLASS}._forward_prefill", GATHER, "deepseek_v4.prefill_gather"),
        (INDEXER, "sparse_attn_indexer", ROWS + TOPK, "indexer.sparse_attn"),
    ],
)
def test_the_rule_gives_every_request(file: str, function: str, bound: int, rule: str) -> None:
    requests = [
        Request(site=1, slot=Slot(), bytes=r["bytes"], arena=0, phase="serving")
        for r in live()
        if r["function"] == function
    ]
    found = bound_site(requests, LIMITS, file=file, function=function, vllm_version=VERSION)
    assert (found.grade, found.bytes, found.known_site) == ("proved", bound, rule)
    assert (f"the rule does not know {CLASS}" in found.why) == (file == FLASH)


def test_the_survey_closes_the_three_sites() -> None:
    sites = [site for site in survey(sources() / "vllm") if site.file in (FLASH, INDEXER)]
    assert {site.function for site in sites} == set(ASKED)
    assert [site.stopped for site in sites] == [None] * len(sites)
    values = LIMITS | {"window_size": 128, "PREFILL_CHUNK_SIZE": 4, "q_last": 512}
    gathers = [parse(s.formula or "0") for s in sites if s.file == FLASH]
    assert {text.evaluate(values) for text in gathers} == {GATHER}
