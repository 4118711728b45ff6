"""Which known site it was, and how many bytes that site can ever need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wstrace.bounds.by_rule import rule_bound
from wstrace.known_sites import known
from wstrace.triage.diagnose import sizes
from wstrace.triage.diagnose.finding import Worst

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wstrace.known_sites.known import KnownSite
    from wstrace.triage.extract.facts import Refusal, StepDump


def choose_site(
    refusal: Refusal,
    module: str | None,
    version: str | None,
    numbers: Mapping[str, int],
    step: StepDump | None,
) -> KnownSite | None:
    """The known site; of alternatives at one call the one that makes the printed bytes.

    `module` is the file's path in the vllm package, where a traceback shows it: some base
    names stand for several files.
    """
    for path in (module, refusal.file):
        first = known.match(path or "", refusal.function or "", version) if path else None
        if first is None or path is None:
            continue
        required = refusal.required
        if required is not None and required.bytes is not None:
            for site in known.matches(path, refusal.function or "", version):
                if sizes.exact(site, numbers, required, step):
                    return site
        return first
    return None


def worst_case(
    site: KnownSite | None,
    numbers: Mapping[str, int],
    factor: sizes.Product | None = None,
    started: bool = False,
) -> Worst:
    """The bound of a site, with the numbers that the text's own sizes fix where some lack.

    `started`: the text shows the start-up, where vLLM names an unusual block size.
    """
    if site is None:
        return Worst()
    found = rule_bound(site, numbers)
    if found.bytes is not None:
        return Worst(found.bytes, found.formula, "proved", (), found.assumed)
    if factor is None:
        return Worst(None, found.formula, None, found.needs, found.assumed)
    filled = {**numbers, **factor.as_values()}
    found = rule_bound(site, filled)
    assumed = (*found.assumed, factor.why)
    total, needs = found.bytes, found.needs
    if needs == ("block_size",) and started:
        total = sizes.block_free(site, filled)
        if total is not None:
            usual = ", ".join(map(str, sizes.BLOCK_SIZES))
            told = f"the log names no other block_size, and any of {usual} gives the same"
            needs, assumed = (), (*assumed, told)
    return Worst(total, found.formula, None if total is None else "fitted", needs, assumed)
