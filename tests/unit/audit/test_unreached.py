"""What a request needs that no profile run has."""

from __future__ import annotations

from tests.unit.audit.conftest import Audited
from tests.unit.audit.test_roles_and_matches import FIXED, layer, request, serving

LANES = """
class ParallelConfig:
    enable_dbo: bool = False
def use_workspace_lane(lane):
    return lane
"""


def test_a_step_without_the_profile_run_needs_real_metadata(audited: Audited) -> None:
    assert serving(audited(layer=layer(FIXED)).sites).unreached == ("real metadata",)


def test_a_constructors_reservation_is_in_the_first_slot_and_lane(audited: Audited) -> None:
    text = layer(FIXED, constructed=request(FIXED))
    site = serving(audited(layer=text, lanes=LANES).sites)
    assert site.unreached == ("real metadata", "DBO slots", "draft lanes")
    profiled = layer(FIXED, profiled=request(FIXED))
    site = serving(audited(layer=profiled, lanes=LANES).sites)
    assert site.unreached == ("real metadata",)


def test_draft_tokens_and_the_cache_are_told_by_conditions(audited: Audited) -> None:
    text = f"""
    class Impl:
        def forward(self, layer, query, attn_metadata):
            if attn_metadata.num_spec_decodes > 0 and attn_metadata.has_initial_state:
                return current_workspace_manager().get_simultaneous({FIXED})
    """
    site = serving(audited(layer=text).sites)
    assert site.unreached == ("real metadata", "speculative steps", "prefix-cache turns")


def test_another_module_than_the_reservation_knows(audited: Audited) -> None:
    text = f"""
    def scratch(x):
        (buffer,) = current_workspace_manager().get_simultaneous({FIXED})
        return buffer
    class Layer:
        def forward(self, x, attn_metadata):
            if attn_metadata is None:
                current_workspace_manager().get_simultaneous({FIXED})
                return None
            return scratch(x)
    """
    other = """
    from vllm.layer import scratch
    class Other:
        def forward(self, x, attn_metadata):
            return scratch(x)
    """
    assert "second callers" not in serving(audited(layer=text).sites).unreached
    assert "second callers" in serving(audited(layer=text, other=other).sites).unreached
