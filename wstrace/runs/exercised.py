"""What a run exercised: a verdict of "clean" is worth as much as the requests behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from wstrace.amounts import Amount, parse_amount
from wstrace.errors import WstraceError
from wstrace.runs.run import Run, RunSite
from wstrace.runs.worker import Worker

MEASURES: Final = ("steps", "reqs", "tokens", "computed", "continued", "sites", "share")


@dataclass(frozen=True)
class Measure:
    """How far one quantity went: `most` seen, of `limit` where the config has one."""

    name: str
    what: str
    most: int
    limit: int | None = None

    @property
    def share(self) -> float | None:
        """`most` over `limit`; None where there is no limit."""
        return self.most / self.limit if self.limit else None


@dataclass(frozen=True)
class SiteReach:
    """The largest request of a site against its bound, in bytes.

    `captured`: it asked while a CUDA graph was captured. A replay runs no Python, so whether
    serving reached such a site is unknown where no request of it was seen.
    """

    site: str
    grade: str
    most: int
    bound: int | None
    in_serving: bool
    captured: bool = False

    @property
    def share(self) -> float | None:
        """How much of its bound the site asked for; None without one.

        An `observed` bound is the largest request itself: a share of it means nothing.
        """
        known = self.bound if self.grade != "observed" else None
        return self.most / known if known else None


@dataclass(frozen=True)
class Reach:
    """What was exercised: the scheduler's quantities, then the sites.

    Over several ranks the largest counts: they run the same layers.
    """

    measures: tuple[Measure, ...]
    sites: tuple[SiteReach, ...]

    def measure(self, name: str) -> Measure:
        """The measure of that name."""
        return next(m for m in self.measures if m.name == name)

    @property
    def share(self) -> float | None:
        """The smallest share of its bound that a site reached in serving."""
        shares = [s.share for s in self.sites if s.in_serving and s.share is not None]
        return min(shares, default=None)


def reach_of(run: Run) -> Reach:
    """What the requests of a run reached."""
    sites = tuple(_site(site) for site in run.sites)
    reached = sum(site.in_serving for site in sites)
    return Reach(
        (*_scheduled(run.workers), Measure("sites", "sites reached", reached, len(sites))),
        sites,
    )


def _scheduled(ranks: list[Worker]) -> list[Measure]:
    counts = [worker.counts for worker in ranks if worker.counts is not None]
    last = _limit(ranks, "max_model_len")
    longest = None if last is None else last - 1
    return [
        Measure("steps", "steps", max((c.steps_real for c in counts), default=0)),
        Measure(
            "reqs",
            "largest batch",
            max((c.max_reqs for c in counts), default=0),
            _limit(ranks, "max_num_seqs"),
        ),
        Measure(
            "tokens",
            "most tokens a step",
            max((c.max_tokens for c in counts), default=0),
            _limit(ranks, "max_num_batched_tokens"),
        ),
        Measure(
            "computed",
            "longest context",
            max((c.max_computed for c in counts), default=0),
            longest,
        ),
        Measure(
            "continued",
            "longest continuation",
            max((c.max_continued for c in counts), default=0),
            longest,
        ),
    ]


def _limit(ranks: list[Worker], name: str) -> int | None:
    values = [worker.limits.get(name) for worker in ranks]
    return max((v for v in values if isinstance(v, int)), default=None)


def _site(site: RunSite) -> SiteReach:
    return SiteReach(
        site=str(site.key),
        grade=site.bound.grade,
        most=site.largest,
        bound=site.bound.bytes,
        in_serving=site.served,
        captured=site.captured,
    )


Minimum = dict[str, Amount]


def parse_minimum(text: str) -> Minimum:
    """`computed=4096,reqs=8` or shares of the limits, `computed=50%,share=80%`.

    Raises WstraceError (exit 2) for an unknown name or a bad amount.
    """
    wanted: Minimum = {}
    for part in (piece.strip() for piece in text.split(",")):
        name, equals, amount = (p.strip() for p in part.partition("="))
        if name not in MEASURES or not equals:
            raise WstraceError(
                f"--min-exercise does not know {part!r}.",
                f"Write {', '.join(MEASURES)} as NAME=NUMBER or NAME=SHARE%, by comma.",
            )
        if name in wanted:
            raise WstraceError(f"--min-exercise has {name} twice.", "Keep one of the two.")
        wanted[name] = parse_amount(amount)
        if name == "share" and wanted[name].share is None:
            raise WstraceError(
                "--min-exercise share takes a percentage.", "Write it as share=80%."
            )
    return wanted


def shortfalls(reach: Reach, wanted: Minimum) -> list[str]:
    """Why the run is too thin to mean something, one reason a line."""
    return [
        reason for name, least in wanted.items() for reason in _shortfall(reach, name, least)
    ]


def _shortfall(reach: Reach, name: str, least: Amount) -> Iterable[str]:
    if name == "share":
        assert least.share is not None
        for site in reach.sites:
            if site.in_serving and site.share is not None and site.share < least.share:
                share = f"{site.share:.0%} of its bound, {least} asked for"
                yield f"thin run: {site.site}: {share}"
        return
    measure = reach.measure(name)
    if least.share is not None and measure.limit is None:
        yield f"thin run: {measure.what}: the trace has no limit to take {least} of"
    elif measure.most < (needed := least.of(measure.limit or 0)):
        yield f"thin run: {measure.what} {measure.most:,}, {needed:,} asked for"
