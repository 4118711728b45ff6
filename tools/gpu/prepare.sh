#!/usr/bin/env bash
# Build, on a machine with a network, what a GPU host without one needs.
#
#   scripts/gpu prepare VERSION PARTS_DIR     the engine's archive (any part.* of a tar.xz that
#                                             holds `engine` and `site`), cut anew into parts
#   scripts/gpu prepare --wstrace             only wstrace, as installed by pip --target
#
# Results, all ignored by git: .bundle/VERSION/part.* of at most $PART_MB (58) MB, and
# .bundle/carry/ with wstrace-site and the compile caches kept by `run.py --pack-caches`.
# How to make the archive: docs/gpu.md. Needs Python 3.12, the host's ($PYTHON312 names it).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
carry=$root/.bundle/carry
part_mb=${PART_MB:-58}
die() { printf 'prepare: %s\n%s\n' "$1" "$2" >&2; exit 2; }

find_python() {
    local python
    for python in "${PYTHON312:-}" "$HOME"/.pyenv/versions/3.12.*/bin/python3 python3.12; do
        [ -n "$python" ] || continue
        if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
    die "Python 3.12 was not found." "Install it, or name it: PYTHON312=/path/to/python3.12."
}

# --target keeps the dist-info, and with it the entry point that vLLM looks for.
install_wstrace() {
    local fresh=$carry/.wstrace-site
    mkdir -p "$carry"
    rm -rf "$fresh"
    "$python" -m pip install --quiet --no-input --disable-pip-version-check \
        --no-deps --no-compile --target "$fresh" "$root"
    "$python" -m pip install --quiet --no-input --disable-pip-version-check \
        --no-deps --no-compile --only-binary=:all: --target "$fresh" "msgspec>=0.18"
    rm -rf "$fresh/bin" "$carry/wstrace-site"
    mv "$fresh" "$carry/wstrace-site"
    du -sh "$carry/wstrace-site"
}

cut_parts() {
    local version=$1 from=$2 to=$root/.bundle/$1
    ls "$from"/part.* >/dev/null 2>&1 || die "No part.* in $from." "See docs/gpu.md."
    [ "$(cd "$from" && pwd)" != "$to" ] || die "$from is the target." "Name another folder."
    rm -rf "$to"
    mkdir -p "$to"
    cat "$from"/part.* | split -b "${part_mb}MB" -d -a 1 - "$to/part."
    ls -l "$to"
}

[ $# -ge 1 ] || die "usage: scripts/gpu prepare VERSION PARTS_DIR | --wstrace" "See docs/gpu.md."
python=$(find_python)
if [ "$1" != --wstrace ]; then
    [ $# = 2 ] || die "usage: scripts/gpu prepare VERSION PARTS_DIR" "See docs/gpu.md."
    cut_parts "$1" "$2"
fi
install_wstrace
