"""Write the generated pages, all of them or those of the named generators.

    scripts/make-docs [--check] [NAME ...]

--check writes nothing and exits 1 where a page is not what it should be.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from tools import ROOT
from tools.docs import cli, columns, examples, gpu, known_sites, sample_reports, trace_format
from tools.docs.page import Generator

GENERATORS: Final[dict[str, Generator]] = {
    made.name: made
    for made in (
        cli.GENERATOR,
        known_sites.GENERATOR,
        trace_format.GENERATOR,
        columns.GENERATOR,
        gpu.GENERATOR,
        sample_reports.GENERATOR,
        examples.GENERATOR,
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where --check found a stale page."""
    parser = argparse.ArgumentParser(prog="scripts/make-docs", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(GENERATORS))
    parser.add_argument("--check", action="store_true", help="write nothing, 1 where stale")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in GENERATORS:
            parser.error(f"no {name}: there are {', '.join(GENERATORS)}")
    stale = [
        told
        for name in options.names or GENERATORS
        for told in renewed(GENERATORS[name], write=not options.check)
    ]
    for told in stale if options.check else ():
        print(told, file=sys.stderr)
    return int(options.check and bool(stale))


def renewed(generator: Generator, *, write: bool) -> list[str]:
    """A line for each stale file; `write` puts them right."""
    told = []
    for path, text in generator.stale():
        told.append(
            f"{path.relative_to(ROOT)} is stale: run scripts/make-docs {generator.name}"
        )
        if write:
            path.write_text(text, "utf-8")
    return told


if __name__ == "__main__":
    sys.exit(main())
