"""`LLM(...)`: in-process, spawned and forked; and a pattern in somebody else's module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.engine import run_python
from tests.integration.test_main_job import BLOCK, bound_of, worst_case
from wstrace.findings.analysed_run import load_run
from wstrace.testbed.engine import plugin_path

pytestmark = pytest.mark.engine

RUN = """
import sys
import wstrace

def main():
    model, trace, grow = sys.argv[1:4]
    if sys.argv[4] == "fork":
        import multiprocessing, vllm.v1.executor.multiproc_executor as executor
        import vllm.v1.engine.utils as engine
        fork = lambda: multiprocessing.get_context("fork")
        executor.get_mp_context = fork
        engine.get_mp_context = fork
    with wstrace.record(trace, on_growth=grow):
        from vllm import LLM, SamplingParams
        llm = LLM(model, load_format="dummy", max_model_len=2048, max_num_batched_tokens=256,
                  max_num_seqs=8, enable_chunked_prefill=True, block_size=128,
                  compilation_config={"mode": 2, "backend": "eager"})
        tokens = [7 + i % 200 for i in range(400)]
        out = llm.generate({"prompt_token_ids": tokens},
                           SamplingParams(max_tokens=4, ignore_eos=True))
        assert len(out[0].outputs[0].token_ids) == 4

if __name__ == "__main__":
    main()
"""

# TurboQuant's continuation once more, with other names, in a module of its own.
RENAMED = """
import math
import torch
from vllm.v1.worker import workspace

class Elsewhere:
    def __init__(self, thing, cfg):
        self.zebras = thing.num_kv_heads
        self.width = thing.head_size
        self.step = cfg.cache_config.block_size

    def forward(self, rows, meta):
        if meta is None:
            return
        starts, ends = meta.query_start_loc.tolist(), meta.seq_lens.tolist()
        for which in range(len(ends)):
            fresh = starts[which + 1] - starts[which]
            if fresh > 32 and ends[which] - fresh > 0:
                self._continuation_prefill(ends[which] - fresh)

    def _continuation_prefill(self, past):
        room = math.ceil(past / self.step) * self.step
        one = (1, self.zebras, room, self.width)
        workspace.current_workspace_manager().get_simultaneous(
            (one, torch.float16), (one, torch.float16)
        )
"""


def llm(
    engine: Path, model: Path, folder: Path, patterns: str, start: str, **env: str
) -> tuple[Path, str]:
    """Run LLM(...) under `wstrace.record(..., on_growth="grow")`; the trace and stderr."""
    script = folder / "job.py"
    script.write_text(RUN)
    trace = folder / "trace"
    source = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    done = run_python(
        source
        if start != "spawn"
        else f"import subprocess, sys; raise SystemExit("
        f"subprocess.call([sys.executable, {str(script)!r}, *sys.argv[1:]]))",
        *(str(model), str(trace), "grow", start),
        prefix=engine,
        patterns=patterns,
        env={"PYTHONPATH": plugin_path(folder), **env},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return trace, done.stderr


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_an_escape_is_found_and_survived_however_the_engine_starts(
    engine: Path, model: Path, tmp_path: Path, start: str
) -> None:
    trace, _ = llm(
        *(engine, model, tmp_path, "decode_scratch,continuation", start),
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
    )
    session = load_run(trace)
    (finding,) = session.escapes
    assert finding.code == "WS101"
    assert finding.bound is not None
    assert (finding.bound.grade, finding.bound.bytes) == ("proved", worst_case(2048))
    (view,) = session.workers
    assert view.header.on_growth == "grow"
    assert view.header.role != "main"


def test_other_names_in_another_module_change_no_grade_and_no_byte(
    engine: Path, model: Path, tmp_path: Path
) -> None:
    """Also: the engine in this process."""
    (tmp_path / "far_away.py").write_text(RENAMED)
    trace, _ = llm(
        *(engine, model, tmp_path, "far_away:Elsewhere", "in-process"),
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
    session = load_run(trace)
    (finding,) = session.escapes
    assert finding.file == "far_away.py"
    bound = bound_of(session)
    assert (bound.grade, bound.bytes) == ("proved", worst_case(2048))
    (view,) = session.workers
    assert (view.header.on_growth, view.header.role) == ("grow", "main")
    assert BLOCK == 128


def test_the_example_of_the_python_page_runs_as_a_script(
    engine: Path, model: Path, tmp_path: Path
) -> None:
    """Spawned engines import the script again: without its `__main__` guard this fails."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "python-api.md").read_text()
    example = page.partition("## wstrace.record\n```python\n")[2].partition("```")[0]
    options = f'{str(model)!r}, load_format="dummy", max_model_len=2048, block_size=128'
    script = tmp_path / "example.py"
    script.write_text(
        'prompts = [{"prompt_token_ids": [7] * 40}]\n'
        + example.replace('"MODEL", max_model_len=32768', options)
    )
    assert options in script.read_text()
    done = run_python(
        "import subprocess, sys; folder, script = sys.argv[1:]; "
        "raise SystemExit(subprocess.call([sys.executable, script], cwd=folder))",
        *(str(tmp_path), str(script)),
        prefix=engine,
        patterns="decode_scratch",
        env={"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == load_run(tmp_path / "trace").verdict()
