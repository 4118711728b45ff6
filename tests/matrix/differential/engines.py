"""Random engines and the steps that their scheduler may run."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from wstrace.trace.records import ScheduledRequest

CAPTURED = (1, 2, 4, *range(8, 513, 8))
"""vLLM's default graph sizes: 1, 2, 4, then multiples of 8 (config/compilation.py)."""


@dataclass(frozen=True)
class Engine:
    """One engine: its config's numbers by wstrace's names, per rank where they are sharded.

    `words` are settings that are no numbers, `captured` the graphs' sizes. `dispatch` is how
    tokens reach the experts, `sm_family` the GPU's (vLLM asks for 100 and 120), `lora` whether
    adapters are served.
    """

    numbers: dict[str, int]
    words: dict[str, str] = field(default_factory=dict)
    captured: tuple[int, ...] = ()
    dispatch: str = "none"
    sm_family: int = 90
    lora: bool = False

    def __getitem__(self, name: str) -> int:
        return self.numbers[name]


@dataclass(frozen=True)
class State:
    """A scheduler step: its requests, and the tokens after padding to a captured graph: those
    of the model's layers, and those that the attention's metadata count, which only a full
    graph pads."""

    requests: tuple[ScheduledRequest, ...]
    padded: int
    attended: int

    @property
    def tokens(self) -> int:
        """Tokens that the step schedules."""
        return sum(request.scheduled for request in self.requests)

    @property
    def longest(self) -> int:
        """The longest sequence after the step."""
        return max(r.computed + r.scheduled for r in self.requests)


def draw_engine(random: Random, *, prefill_context: bool = True) -> Engine:
    """An engine whose layout divides or does not, as vLLM allows it. `prefill_context`: the
    release can share a prefill over ranks (PCP)."""
    tp = random.choice((1, 1, 2, 4, 8))
    dp = random.choice((1, 1, 2, 3, 4))
    pcp = random.choice((1, 1, 1, 2)) if prefill_context else 1
    ep = random.random() < 0.6
    dcp = random.choice([n for n in (1, 1, 2, 4, 8) if tp % n == 0])
    budget = random.choice((512, 2048, 8192, random.randint(200, 9000), random.randint(4, 40)))
    seqs = min(budget, random.choice((4, 64, 256, random.randint(1, 300))))
    drafts = random.choice((0, 0, 1, 3))
    heads = random.choice((1, 2, 4, 8, 16, 24, 32, 64))
    experts = random.choice((8, 60, 64, 128, 256))
    ranks = tp * dp * pcp if ep else 1
    captured = _captured(random, budget)
    numbers = {
        "tensor_parallel_size": tp,
        "data_parallel_size": dp,
        "prefill_context_parallel_size": pcp,
        "decode_context_parallel_size": dcp,
        "expert_parallel_size": ranks,
        "enable_expert_parallel": int(ep),
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
        "max_model_len": random.choice((4096, 32768, 131072, random.randint(600, 50000))),
        "block_size": random.choice((16, 32, 64, 128)),
        "max_cudagraph_capture_size": max(captured),
        "num_attention_heads": heads,
        "num_kv_heads": random.choice([n for n in (1, 2, 4, 8) if heads % n == 0]),
        "head_size": random.choice((64, 96, 128, 256)),
        "hidden_size": random.choice((2048, 2880, 4096, 7168)),
        "moe_intermediate_size": random.choice((352, 512, 768, 1408, 2048)),
        "num_experts": experts,
        "num_redundant_experts": random.choice((0, 0, ranks)) if ep else 0,
        "top_k": random.choice((1, 2, 6, 8)),
        "kv_lora_rank": random.choice((256, 512)),
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "index_head_dim": 128,
        "index_n_heads": random.choice((32, 64)),
        "index_topk": 2048,
        "num_sms": random.choice((78, 108, 132, 144)),
        "tq_max_kv_splits": random.choice((8, 32)),
        "sliding_window": random.choice((128, 1023)),
        "dtype_size": 2,
        "num_layers": 32,
        "sparse_mla_prefill_workspace_factor": 5,
    }
    if drafts:
        numbers["num_speculative_tokens"] = drafts
    dispatch = "none" if dp * pcp == 1 else "gather"
    if ep and dispatch == "gather":
        read = random.random() < 0.9
        dispatch = random.choice(("gather", "routed", "pairwise") if read else UNREAD)
    split = dispatch not in ("none", "pairwise", "pairs_once") and ep and tp > 1 and dp > 1
    numbers["sequence_parallel_size"] = tp if split else 1
    modes = ("FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE", "FULL", "FULL_DECODE_ONLY", "NONE")
    words = {
        "all2all_backend": _BACKENDS[dispatch],
        "dtype": "bfloat16",
        "cudagraph_mode": random.choice(modes),
    }
    family = random.choice((90, 100, 120))
    return Engine(numbers, words, captured, dispatch, family, random.random() < 0.2)


def _captured(random: Random, budget: int) -> tuple[int, ...]:
    """vLLM's default sizes, or a few that somebody gave, none above the token budget."""
    most = max(1, min(512, budget))
    if random.random() < 0.7:
        return tuple(size for size in CAPTURED if size <= most)
    return tuple(sorted({random.randint(1, most) for _ in range(random.randint(1, 5))}))


UNREAD = ("whole_steps", "pairs", "pairs_once", "own_experts")
"""Ways by which more rows arrive than rules count, so that none may prove anything: a buffer of
a whole step from each rank (MoRI, FlashInfer one-sided), a row for each pair of a token and an
expert (DeepEP v2; MoonEP, which splits no step), experts that dispatch by themselves."""
_BACKENDS = {
    "whole_steps": "mori_high_throughput",
    "pairs": "deepep_v2",
    "pairs_once": "moonep",
    "own_experts": "passthrough",
    "none": "allgather_reducescatter",
    "gather": "allgather_reducescatter",
    "routed": "deepep_high_throughput",
    "pairwise": "flashinfer_all2allv",
}


def draw_states(engine: Engine, random: Random, count: int) -> list[State]:
    """Steps inside the scheduler's limits: the corners, and random ones."""
    length = engine["max_model_len"] - 1
    corners = [_decodes(engine, engine["max_num_seqs"], True), _one_prefill(engine, True)]
    corners += [_uneven(engine, width) for width in range(1, _width(engine) + 1)]
    corners.append(_full(engine))
    corners += [*(_even(engine, most) for most in (128, 512, length)), _beside_single(engine)]
    corners += [_beside_short(engine, short) for short in (1, 3)]
    drawn = [_random_step(engine, random) for _ in range(count)]
    steps = [*(step for step in corners if step), *(step for step in drawn if step)]
    return [State(tuple(step), *_padded(engine, step, random)) for step in steps]


def _width(engine: Engine) -> int:
    return 1 + engine.numbers.get("num_speculative_tokens", 0)


def _decodes(engine: Engine, most: int, longest: bool) -> list[ScheduledRequest]:
    width, length = _width(engine), engine["max_model_len"]
    count = min(most, engine["max_num_batched_tokens"] // width)
    computed = length - width if longest else width
    return [
        ScheduledRequest(scheduled=width, computed=computed, draft=width - 1)
        for _ in range(max(0, count))
    ]


def _uneven(engine: Engine, width: int) -> list[ScheduledRequest]:
    """One decode of `width` tokens among as many of a single token as fit."""
    count = min(engine["max_num_seqs"], engine["max_num_batched_tokens"] - width + 1)
    scheduled = [width, *[1] * (count - 1)] if count > 0 else []
    return [ScheduledRequest(scheduled=n, computed=width, draft=n - 1) for n in scheduled]


def _full(engine: Engine) -> list[ScheduledRequest]:
    """Prefills that fill the budget, whatever a sequence's length allows."""
    step: list[ScheduledRequest] = []
    left = engine["max_num_batched_tokens"]
    while left and len(step) < engine["max_num_seqs"]:
        scheduled = min(left, engine["max_model_len"] - 1)
        step.append(ScheduledRequest(scheduled=scheduled, computed=0))
        left -= scheduled
    return step


def _even(engine: Engine, longest: int) -> list[ScheduledRequest]:
    """The budget in equal shares of up to `longest`, a new prompt each."""
    seqs = engine["max_num_seqs"]
    share = min(engine["max_num_batched_tokens"] // seqs, longest)
    return [ScheduledRequest(scheduled=share, computed=0) for _ in range(seqs)]


def _beside_single(engine: Engine) -> list[ScheduledRequest]:
    """One new prompt beside as many of a single token as there may be."""
    short = engine["max_num_seqs"] - 1
    left = min(engine["max_num_batched_tokens"] - short, engine["max_model_len"] - 1)
    return [ScheduledRequest(scheduled=n, computed=0) for n in (left, *[1] * short)]


def _beside_short(engine: Engine, short: int) -> list[ScheduledRequest]:
    """One prefill of nearly the whole budget and `short` brief ones, all at their end."""
    brief, length = _width(engine) + 1, engine["max_model_len"]
    left = min(engine["max_num_batched_tokens"] - short * brief, length - 1)
    if left <= brief or engine["max_num_seqs"] <= short:
        return []
    rows = [left, *[brief] * short]
    return [ScheduledRequest(scheduled=n, computed=length - n - 1) for n in rows]


def _one_prefill(engine: Engine, last: bool) -> list[ScheduledRequest]:
    length = engine["max_model_len"]
    tokens = min(engine["max_num_batched_tokens"], length - 1)
    return [ScheduledRequest(scheduled=tokens, computed=length - tokens - 1 if last else 0)]


def _random_step(engine: Engine, random: Random) -> list[ScheduledRequest]:
    """Decodes first, then prefills that share what is left of the budget."""
    kind, length, width = random.random(), engine["max_model_len"], _width(engine)
    step: list[ScheduledRequest] = []
    left, most = engine["max_num_batched_tokens"], engine["max_num_seqs"]
    if kind < 0.7:
        for _ in range(random.randint(1, most)):
            scheduled = random.randint(1, width)
            if scheduled > left:
                break
            computed = random.randint(1, length - scheduled)
            step.append(
                ScheduledRequest(scheduled=scheduled, computed=computed, draft=scheduled - 1)
            )
            left -= scheduled
    while kind > 0.3 and left > 0 and len(step) < most:
        scheduled = random.randint(1, min(left, length - 1))
        computed = random.choice((0, random.randint(0, length - scheduled)))
        step.append(ScheduledRequest(scheduled=scheduled, computed=computed))
        left -= scheduled
        if random.random() < 0.4:
            break
    return step


def _padded(engine: Engine, step: list[ScheduledRequest], random: Random) -> tuple[int, int]:
    """The tokens of a step and those its attention counts: as scheduled, or those of the next
    graph. FULL_AND_PIECEWISE has full graphs of decodes, as long as there are so many. With
    data parallelism the longest step of all ranks decides, where all of them run as graphs."""
    tokens = sum(request.scheduled for request in step)
    fits = [size for size in engine.captured if tokens <= size]
    mode, width = engine.words["cudagraph_mode"], _width(engine)
    decodes = all(r.computed and r.scheduled == width for r in step)
    full = decodes and fits and fits[0] <= engine["max_num_seqs"] * width
    if not fits or mode == "NONE" or random.random() < 0.3:
        return tokens, tokens
    if mode == "FULL" and engine["data_parallel_size"] > 1:
        longest = random.choice(fits)
        return longest, longest
    if mode == "FULL" or full:
        return fits[0], fits[0]
    return (tokens if mode == "FULL_DECODE_ONLY" else fits[0]), tokens
