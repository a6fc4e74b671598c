#!/usr/bin/env bash
# Trains the demo's drafter on one GPU. Target, shards and an optional start come in parts (see
# deploy/gpu/parts.py) and the run goes back in parts.
#
#   deploy/gpu/train_demo.sh --target PARTS --shards PARTS [--shards PARTS ..] --out PARTS
#       [--start PARTS] [--minutes 8] [--part-megabytes 15] [--python PYTHON] [-- options of dlite train]
set -euo pipefail

target= start= out= minutes=8 megabytes=15 python=python3
shards=()
while [ $# -gt 0 ]; do
  case $1 in
    --target) target=$2; shift 2 ;;
    --shards) shards+=("$2"); shift 2 ;;
    --start) start=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --minutes) minutes=$2; shift 2 ;;
    --part-megabytes) megabytes=$2; shift 2 ;;
    --python) python=$2; shift 2 ;;
    --) shift; break ;;
    *) echo "train_demo.sh: unknown option $1" >&2; exit 2 ;;
  esac
done
if [ -z "$target" ] || [ -z "$out" ] || [ ${#shards[@]} -eq 0 ]; then
  echo "train_demo.sh: give --target, --shards and --out" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m deploy.gpu.parts join "$target" "$work/target"
options=()
for i in "${!shards[@]}"; do
  "$python" -m deploy.gpu.parts join "${shards[$i]}" "$work/shards-$i"
  options+=(--data "$work/shards-$i")
done
if [ -n "$start" ]; then
  "$python" -m deploy.gpu.parts join "$start" "$work/start"
  options+=(--init-from "$work/start")
fi

# The time limit ends the run as a kill would: what the last save left is the result.
timeout --signal=KILL "${minutes}m" "$python" -m deploy.cli train "${options[@]}" \
  --target "$work/target" --out "$work/run" --device "${DLITE_DEVICE:-cuda}" --save-every 200 --store float16 "$@" \
  || [ $? -eq 137 ]

# The optimiser's state stays behind: the drafter starts the next run.
rm -f "$work/run/state.safetensors"
"$python" -m deploy.gpu.parts split "$work/run" "$out" --part-megabytes "$megabytes"
