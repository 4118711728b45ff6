"""`python -m tools.fuzz.one TARGET SECONDS`: one target, in a process that libFuzzer ends."""

from __future__ import annotations

import sys

from tools.fuzz.__main__ import fuzz

if __name__ == "__main__":
    fuzz(sys.argv[1], int(sys.argv[2]))
