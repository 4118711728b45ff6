#!/usr/bin/env bash
# On the GPU host: unpack the parts of an engine and check that it imports beside wstrace.
#
#   scripts/gpu unpack VERSION PARTS_DIR [WSTRACE_SITE]     into /opt/vllm-VERSION
set -euo pipefail

die() { printf 'unpack: %s\n%s\n' "$1" "$2" >&2; exit 2; }
[ $# -ge 2 ] || die "usage: scripts/gpu unpack VERSION PARTS_DIR [WSTRACE_SITE]" "See docs/gpu.md."
version=$1 parts=$2 wstrace=${3:-}
ls "$parts"/part.* >/dev/null 2>&1 || die "No part.* in $parts." "scripts/gpu prepare makes them."
to=/opt/vllm-$version
if [ ! -e "$to/.unpacked" ]; then
    rm -rf "$to"
    mkdir -p "$to"
    if command -v xz >/dev/null; then
        cat "$parts"/part.* | xz -dc -T0 | tar xf - -C "$to"
    else
        cat "$parts"/part.* | python3 -c 'import sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall(sys.argv[1], filter="tar")' "$to"
    fi
    touch "$to/.unpacked"
fi
found=$(find "$to/engine" -maxdepth 1 -name 'vllm-*.dist-info')
case $found in
*/vllm-"$version"*.dist-info) ;;
*) die "$to holds ${found:-no vLLM}, not $version." "Remove it, and give that version's parts." ;;
esac
export PYTHONPATH="$to/engine:$to/site:$wstrace"
python3 -P - <<'PYTHON'
from importlib.metadata import entry_points, version

plugins = [e.name for e in entry_points(group="vllm.general_plugins")]
print("vllm", version("vllm"), "torch", version("torch"), "plugins", plugins)
import torch, wstrace.cli.app, wstrace.findings.analysed_run

print("gpus", torch.cuda.device_count())
PYTHON
