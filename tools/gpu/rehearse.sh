#!/usr/bin/env bash
# Rehearse the GPU scripts on vLLM's CPU engine: every step, nothing proved about GPUs.
#
#   scripts/gpu rehearse [run options]      default: --scenario a,overhead --deadline 900
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
env=$("$root/scripts/engine-env")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_PRELOAD=$env/lib/libiomp5.so
export PYTHONPATH=$root
"$env/bin/python" -m tools.gpu.run --cpu-rehearsal --engine "$work/none" \
    --work "$work/work" --out "$root/build/gpu-rehearsal" --share 0.5 \
    --scenario a,overhead --deadline 900 "$@"
