"""Scenario g: the patch that removes a reservation, and the size that its claims expect."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tools import ROOT
from tools.gpu.clock import Clock
from tools.gpu.deepseek_v4 import (
    LENGTH,
    LONG,
    all_prompts,
    arguments,
    claims,
    deadly,
    flat,
    gather_bytes,
)
from tools.gpu.runner import asks
from tools.gpu.servers import GpuServer
from tools.gpu.unreserved import reservation_in, without_reservation
from wstrace.errors import WstraceError
from wstrace.testbed.engine import Answer

FILE = "vllm/attention.py"
# The shape of vLLM's code, not its text: a warm-up branch that asks and returns.
SOURCE = """\
class Impl:
    def forward(self, q, metadata):
        if metadata is None:
            rows = self.rows
            manager().get_simultaneous(
                ((4, rows), dtype),
            )
            return
        kv = manager().get_simultaneous(((4, self.rows), dtype))[0]
        return kv
"""


def engine(folder: Path, source: str = SOURCE) -> Path:
    target = folder / "engine" / FILE
    target.parent.mkdir(parents=True)
    target.write_text(source)
    (folder / "site").mkdir()
    return folder


def test_the_reservation_goes_and_the_serving_request_stays(tmp_path: Path) -> None:
    root = engine(tmp_path / "as-released")
    removed = without_reservation(root, tmp_path / "bare", FILE, "forward")
    assert (removed.first, removed.last) == (5, 7)
    text = (tmp_path / "bare" / "engine" / FILE).read_text()
    assert text.count("get_simultaneous") == 1
    compile(text, FILE, "exec")
    assert (root / "engine" / FILE).read_text() == SOURCE


@pytest.mark.parametrize(
    "source",
    [
        "def forward(self): pass\n",
        SOURCE.replace("            return\n        kv", "        kv"),
        SOURCE.replace("def forward", "def another"),
        SOURCE + SOURCE,
    ],
    ids=["no request", "no branch that returns", "another function", "two of them"],
)
def test_another_engine_is_refused(tmp_path: Path, source: str) -> None:
    root = engine(tmp_path / "as-released", source)
    assert reservation_in(source, "forward") is None
    with pytest.raises(WstraceError, match="no single reservation"):
        without_reservation(root, tmp_path / "bare", FILE, "forward")


def test_the_gather_buffer_of_the_field_run() -> None:
    """24.50 MiB was vLLM's own number on an H200; 72.5 by hand for four times the length:
    4 * (65536 / 4 + 128 + 2048) * 512 * 2."""
    assert gather_bytes(LENGTH) == 25_690_112
    assert gather_bytes(LONG) == 4 * (16384 + 128 + 2048) * 512 * 2


@pytest.mark.parametrize(
    ("version", "crowd"), [("0.22.1", False), ("0.24.0", True), ("0.26.0", True)]
)
def test_one_prompt_is_enough_where_a_gather_has_a_fixed_size(
    version: str, crowd: bool
) -> None:
    """Eight prompts of 12,000 tokens in steps of 256 each: 8 * (2752 + 383) rows of at most
    4 * 6272 when each has 11,008 tokens."""
    assert len(flat(deadly(version))) == (8 if crowd else 1)
    assert flat(all_prompts(version))[-1] == max(flat(all_prompts(version)))
    flags = arguments(version)
    assert ("--long-prefill-token-threshold" in flags) is crowd
    assert flags[flags.index("--max-num-seqs") + 1] == ("8" if crowd else "4")
    rows = max(8 * (step * 256 // 4 + 383) for step in range(1, 44))
    assert gather_bytes(LENGTH) * 0.99 < rows * 1024 <= gather_bytes(LENGTH)


def test_prompts_sent_at_once_overlap_and_are_noted_in_their_order(tmp_path: Path) -> None:
    sent: list[int] = []

    class Slow(GpuServer):
        def ready(self) -> None:
            pass

        def complete(
            self,
            prompt: int | Sequence[int],
            max_tokens: int = 4,
            seconds: float = 120.0,
            **more: int,
        ) -> Answer:
            tokens = [prompt] if isinstance(prompt, int) else prompt
            sent.append(len(tokens))
            while len(sent) < 8:  # each waits for the others: one after the other never ends
                time.sleep(0.001)
            time.sleep((12008 - len(tokens)) * 0.002)
            return Answer(200, "")

    server = Slow(tmp_path, tmp_path / "server.log", [], clock=Clock(100.0), folder=tmp_path)
    asks(server, deadly("0.26.0"))[1]()
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert [row["tokens"] for row in rows] == list(range(12000, 12008))


WHOLE = 76_021_760  # 72.50 MiB, as above
HIDDEN = {
    "code": "WS103",
    "function": "Attention._forward_prefill",
    "serving_bytes": WHOLE,
    "arena_bytes": 87_556_096,  # 83.50 MiB, the indexer's in the sample's report
    "bound": {"grade": "proved", "bytes": WHOLE},
}


def hidden(
    folder: Path, server: str = "hidden-indexer", **changes: Any
) -> dict[str, bool | None]:
    """What becomes of a hidden server's claims, with the sample's trace and this finding."""
    own = folder / server
    own.mkdir()
    shutil.copytree(ROOT / "sample_traces" / "h200-vllm-0.22.1-dsv4-hidden", own / "trace")
    prompts = [{"event": "prompt", "tokens": n, "status": 200} for n in (50, 1300)]
    (own / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    (own / "gate.json").write_text(json.dumps({"findings": [HIDDEN | changes]}))
    (own / "gate.exit").write_text("0\n")
    rows = claims(folder, {"vllm": "0.22.1"})
    return {c.claim.split(": ", 1)[1]: c.ok for c in rows if c.claim.startswith(server)}


LARGER = "WS103, the neighbour's arena is larger"


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({}, []),
        ({"serving_bytes": WHOLE - 1}, ["wstrace's bytes"]),
        ({"arena_bytes": WHOLE - 1}, [LARGER]),
        ({"arena_bytes": 87_556_096 + 256}, [LARGER]),  # nobody's request
        (
            {"bound": {"grade": "observed", "bytes": WHOLE}},
            ["the bound is proved, to the byte"],
        ),
        (
            {"bound": {"grade": "proved", "bytes": WHOLE + 1}},
            ["the bound is proved, to the byte"],
        ),
    ],
)
def test_one_wrong_number_fails_one_claim_of_a_hidden_server(
    tmp_path: Path, changes: dict[str, Any], failing: list[str]
) -> None:
    assert [text for text, ok in hidden(tmp_path, **changes).items() if not ok] == failing


def test_the_indexers_arena_is_not_the_experts(tmp_path: Path) -> None:
    """The sample's neighbour is the indexer; the same trace as the MoE server's fails."""
    assert hidden(tmp_path, "hidden-moe")[LARGER] is False
