#!/usr/bin/env bash
# tools/integrations/verl/launch.sh MODEL [OVERRIDE...]: DA-GRPO on verl, on this machine's GPUs or on the Ray cluster that is running.
# MODEL: a launch file of config/ without .yaml; coordinator and dagrpo are none.
# DAGRPO_COORDINATOR: HOST:PORT (127.0.0.1:7420); DAGRPO_DATA: folder with train.parquet and test.parquet (data).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[[ $# -ge 1 && $1 != */* && $1 != coordinator && $1 != dagrpo && -f "$here/config/$1.yaml" ]] || {
  echo "usage: ${0##*/} MODEL [OVERRIDE...]; MODEL is qwen2.5-1.5b-instruct or llama-3.2-3b-instruct" >&2
  exit 2
}
model=$1
shift
data=${DAGRPO_DATA:-data}
[[ -f "$data/train.parquet" && -f "$data/test.parquet" ]] || {
  echo "error: no train.parquet and test.parquet in $data; make them with python -m tools.integrations.verl.prepare, or set DAGRPO_DATA" >&2
  exit 1
}
DAGRPO_DATA=$(cd "$data" && pwd)
export DAGRPO_DATA PYTHONPATH="$here/../../..${PYTHONPATH:+:$PYTHONPATH}"
exec python -m verl.trainer.main_ppo --config-path "$here/config" --config-name "$model" "$@"
