"""Launches of more than one server or engine: a second command with `--headless`, several API
servers."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from wstrace.findings.analysed_run import load_run
from wstrace.gate.runs import load_runs
from wstrace.testbed.engine import SERVE, Server, engine_env, free_port

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RANK = """
import sys

def main():
    from vllm import LLM, SamplingParams
    llm = LLM(sys.argv[1], load_format="dummy", max_model_len=2048, max_num_batched_tokens=256,
              max_num_seqs=8, block_size=128, tensor_parallel_size=2,
              distributed_executor_backend="external_launcher",
              compilation_config={"mode": 2, "backend": "eager"})
    tokens = [7 + i % 200 for i in range(400)]
    llm.generate({"prompt_token_ids": tokens}, SamplingParams(max_tokens=4, ignore_eos=True))

if __name__ == "__main__":
    main()
"""


def test_two_commands_with_one_run_id_are_one_run_of_two_engines(
    serve: Callable[..., Server], engine: Path, model: Path, tmp_path: Path
) -> None:
    """vLLM 0.32.0: each engine of a dense model stands alone, with a DP rank of its own."""
    groups = (
        *("--data-parallel-size", "2", "--data-parallel-size-local", "1"),
        *("--data-parallel-address", "127.0.0.1"),
        *("--data-parallel-rpc-port", str(free_port())),
    )
    program = str(engine / "bin" / "wstrace")

    def before(name: str) -> list[str]:
        options = ["--on-growth", "grow", "--run-id", "launch-1", "-o", str(tmp_path / name)]
        return [program, "run", "-q", *options, "--"]

    far = subprocess.Popen(
        [
            *before("far"), str(engine / "bin" / "vllm"), "serve", str(model), *SERVE,
            "--headless", *groups, "--data-parallel-start-rank", "1",
        ],
        env=engine_env("continuation", prefix=engine),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        server = serve("continuation", *groups, before=before("near"))
        statuses = {server.complete(300 + 16 * number).status for number in range(6)}
        assert statuses == {200}
        server.stop()
    finally:
        far.send_signal(signal.SIGTERM)
        far.wait()
    (run,) = load_runs([tmp_path / "near", tmp_path / "far"])
    assert [worker.ranks.dp for worker in run.workers] == [0, 1]
    assert all(worker.counts and worker.counts.steps_real for worker in run.workers)
    (escape,) = run.escapes
    assert [ranks.dp for ranks in escape.ranks] == [0, 1]
    alone = load_run(tmp_path / "near")
    others = "1 of 2 data-parallel engines are of other commands, with traces of theirs"
    assert others in alone.rests_on.command


def test_several_api_servers_of_two_engines_are_one_run(
    serve: Callable[..., Server], engine: Path, model: Path, tmp_path: Path
) -> None:
    """vLLM 0.32.0: each API server is a process of its own, and may ask either engine."""
    before = [str(engine / "bin" / "wstrace"), "run", "-q", "--on-growth", "grow"]
    server = serve(
        "continuation", "--data-parallel-size", "2", "--api-server-count", "2",
        before=[*before, "-o", str(tmp_path / "trace"), "--"],
    )  # fmt: skip
    assert {server.complete(300 + 16 * number).status for number in range(6)} == {200}
    server.stop()
    run = load_run(tmp_path / "trace")
    assert [worker.ranks.dp for worker in run.workers] == [0, 1]
    assert any(worker.counts and worker.counts.steps_real for worker in run.workers)
    (escape,) = run.escapes
    # how the two servers share out six prompts is theirs
    assert {ranks.dp for ranks in escape.ranks} <= {0, 1}
    assert not any("no trace" in told for told in run.inconclusive)
    text = (tmp_path / "serve.log").read_text()
    assert {f"ApiServer_{number}" for number in (0, 1)} <= set(
        re.findall(r"ApiServer_\d", text)
    )


def test_ranks_that_torchrun_started_are_one_run(
    engine: Path, model: Path, tmp_path: Path
) -> None:
    """vLLM 0.32.0, `external_launcher`: engine and worker of a rank are one process."""
    (tmp_path / "rank.py").write_text(RANK)
    words = ["torchrun", "--nproc-per-node", "2", str(tmp_path / "rank.py"), str(model)]
    done = subprocess.run(
        [
            str(engine / "bin" / "wstrace"), "run", "-q", "--on-growth", "grow",
            *("-o", str(tmp_path / "trace"), "--"), str(engine / "bin" / words[0]), *words[1:],
        ],
        env=engine_env("decode_scratch,continuation", prefix=engine)
        | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    run = load_run(tmp_path / "trace")
    assert [worker.ranks.tp for worker in run.workers] == [0, 1]
    assert {worker.header.role for worker in run.workers} == {"main"}
    assert all(worker.counts and worker.counts.steps_real for worker in run.workers)
    (escape,) = run.escapes
    assert [ranks.tp for ranks in escape.ranks] == [0, 1]
    assert run.inconclusive == []
