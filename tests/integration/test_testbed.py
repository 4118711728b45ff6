"""The testbed on a real `vllm serve`: what it shows, before wstrace comes in."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from wstrace.testbed.engine import plugin_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from wstrace.testbed.engine import Server

pytestmark = pytest.mark.engine

LOCKED = re.compile(
    r"AssertionError: (Workspace is locked but allocation from '(.*?)' requires (\S+) MB, "
    r"current size is (\S+) MB\. Workspace growth is not allowed after locking\.)"
)
THIRD_PARTY = '''
import os

class Counter:
    """Writes a line a forward pass: which layer's object, profile run or not."""

    def __init__(self, impl, vllm_config):
        self.number = id(self)

    def forward(self, query, attn_metadata):
        kind = "profile" if attn_metadata is None else str(attn_metadata.num_actual_tokens)
        with open(os.environ["COUNTER_FILE"], "a") as lines:
            lines.write(f"{self.number} {kind}\\n")
'''


def test_a_locked_workspace_kills_the_server(serve: Callable[..., Server]) -> None:
    server = serve("continuation,decode_scratch", "--block-size", "32")

    assert server.complete(100).status == 200
    assert server.complete(400).status == 500

    # 400 tokens in chunks of 256: the second continues 256 computed ones; 4 KV heads of 64.
    required = 2 * 4 * 256 * 64 * 2
    # Warm-up decoded one request: 8 heads, 32 splits of 65 float32, 64 float16, 1 float32.
    arena = 8 * 32 * 65 * 4 + 8 * 64 * 2 + 256
    found = LOCKED.search(server.log.read_text())
    assert found
    assert re.fullmatch(r"patterns\.py:\d+:_continuation_prefill", found[2])
    assert found[3] == f"{required / 2**20:.2f}"
    assert found[4] == f"{arena / 2**20:.2f}"
    _wait_exit(server)


def test_a_layer_that_reserves_its_worst_case_survives(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Also: attention runs in Python, once a layer and step, though the model is compiled."""
    (tmp_path / "third_party.py").write_text(THIRD_PARTY)
    counted = tmp_path / "counted"
    env = {"PYTHONPATH": plugin_path(tmp_path), "COUNTER_FILE": str(counted)}
    server = serve("clean,third_party:Counter", env=env)
    counted.write_text("")

    assert server.complete(400).status == 200
    assert server.complete(2044).status == 200  # max_model_len 2048 with the 4 answers

    assert "Workspace is locked" not in server.log.read_text()
    assert server.exit_code is None
    lines = Counter(line.split()[0] for line in counted.read_text().splitlines())
    steps = (2 + 3) + (8 + 3)  # chunks of 256 tokens, then one step for each further token
    assert list(lines.values()) == [steps] * 4


def _wait_exit(server: Server, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while server.exit_code is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert server.exit_code is not None
