"""An audit joined with a run on an H100, where TurboQuant's prefill killed vLLM 0.21.0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wstrace.audit.joined import joined
from wstrace.audit.whole import reading
from wstrace.runs.run import run_of
from wstrace.trace.reader import load_trace

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "sample_traces" / "h100-vllm-0.21.0-turboquant-crash"
LAYERS = """
class TurboQuantAttentionImpl:
    def forward(self, layer, query, attn_metadata):
        self._continuation_prefill(query, attn_metadata)
        return self._decode_attention(query, attn_metadata)
    def _continuation_prefill(self, query, attn_metadata):
        return current_workspace_manager().get_simultaneous(
            ((attn_metadata.num_computed, 4), torch.float16)
        )
    def _decode_attention(self, query, attn_metadata):
        return current_workspace_manager().get_simultaneous(((64,), torch.uint8))
    def _forward_with_dcp(self, query, attn_metadata):
        return current_workspace_manager().get_simultaneous(((64,), torch.uint8))
    def forward_dcp(self, query, attn_metadata):
        if self.dcp_world_size > 1:
            self._forward_with_dcp(query, attn_metadata)
"""


def test_each_request_has_the_state_that_the_run_shows(package: Callable[..., Path]) -> None:
    name = "v1/attention/backends/turboquant_attn"
    root = package(**{name: LAYERS})
    found = joined(reading(root, "0.21.0"), run_of(load_trace(RUN)))
    states = {j.site.enclosing.rpartition(".")[2]: j.state for j in found}
    assert states == {
        "_continuation_prefill": "too small",
        "_decode_attention": "safe",
        "_forward_with_dcp": "not loaded",
    }
    assert found[0].largest > 2_146_816  # larger than the arena of vLLM's message
