#!/bin/sh
# Parity, verification cost and speed of the target on one GPU, under eight minutes; the result goes
# to docs/results/gpu.json. Needs Python with the packages of `pip install '.[models]'` and CUDA's
# torch; flash-attn is compared when it is installed. Options go on: --sizes small, --device cpu.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-$( [ -x .venv/bin/python ] && echo .venv/bin/python || echo python3 )}
export HF_HUB_OFFLINE=1
OUT=${OUT:-docs/results}
mkdir -p "$OUT"
timeout 470 "$PYTHON" -m deploy.gpu.check "$@" > "$OUT/gpu.json.new"
mv "$OUT/gpu.json.new" "$OUT/gpu.json"
cat "$OUT/gpu.json"
