"""Scheduler quantities: the names that a driver of a request can be bound to.

A formula's leaf is either a constant or a driver; a driver is useful only when the source
shows *which* scheduler quantity it is, because those have limits in the config
(`wstrace.bounds.limits` gives each one its limit expression).
"""

from __future__ import annotations

from typing import Final

ROLES: Final[dict[str, str]] = {
    "num_computed_tokens": "tokens of one request whose KV was cached before this step",
    "seq_len": "computed and scheduled tokens of one request",
    "query_len": "scheduled tokens of one request in this step",
    "num_scheduled_tokens": "scheduled tokens of the step, all requests, unpadded",
    "num_padded_tokens": "tokens of the step after graph, sequence-parallel or DP padding",
    "num_reqs": "requests in the step",
    "num_decodes": "requests in the step that decode",
    "num_decode_tokens": "tokens of decoding requests, draft tokens included",
    "num_decode_rows": "decoding requests times the tokens of their longest: a padded batch",
    "num_prefills": "requests in the step that prefill",
    "num_prefill_tokens": "tokens of prefilling requests",
    "total_seq_len": "sum of the sequence lengths of the step's requests",
    "max_blocks_per_req": "width of the block table: KV blocks of one request",
}
