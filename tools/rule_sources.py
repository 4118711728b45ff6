"""Writes for which code the rules of known sites count in `wstrace audit`.

    python -m tools.rule_sources [VERSION ...]

For each release (those of docs/compatibility.md and of tests/matrix/audit_truth.csv if none is
named), the digest of each request's code that only a rule gives. Run it when a release was read
and its rules were held against it (tests/matrix/differential), not to make an audit agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tests.matrix.wheels import PINNED, python_files
from tools.audit_truth import versions
from wstrace.audit.shown_rules import FILE
from wstrace.audit.whole import reading


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*")
    options = parser.parse_args(arguments)
    found: dict[str, set[str]] = {}
    for version in options.versions or sorted({*PINNED, *versions(), *ALSO}):
        read = reading(python_files(version) / "vllm", version)
        read.audit()
        for rule, digest in read.matcher.ruled:
            found.setdefault(rule, set()).add(digest)
        print(version, len(read.matcher.ruled), "requests by rule")
    FILE.write_text(
        json.dumps({r: sorted(d) for r, d in sorted(found.items())}, indent=2) + "\n"
    )
    return 0


# Releases in docs/gpu.md that neither table has.
ALSO = ("0.22.1",)
if __name__ == "__main__":
    sys.exit(main())
