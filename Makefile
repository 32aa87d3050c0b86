# Everything is made in .venv, build and models; `make clean` takes the first two away again.
# A stamp in .venv says what is installed, so the second call of a target does nothing twice.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
NATIVE := CMakeLists.txt $(wildcard csrc/*)

# Of the demo model's 92 MiB of weights, Python, the tokenizer and the caches leave room for a third here.
DEMO_RAM := 120MiB
DEMO_PROMPT := What is gravity?

.PHONY: help demo test sanitize check format bench gpu-check models clean

help: ## List the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 19

demo: $(VENV)/package ## Ask a small model a question with less than half of it in memory
	@$(BIN)/python scripts/fetch_models.py smollm
	@echo; echo '$$ flexinfer plan demo --ram $(DEMO_RAM) --prompt-tokens 40 --new-tokens 96'
	@$(BIN)/flexinfer plan demo --ram $(DEMO_RAM) --prompt-tokens 40 --new-tokens 96
	@echo; echo '$$ flexinfer run demo "$(DEMO_PROMPT)" --ram $(DEMO_RAM) --max-tokens 96'
	@$(BIN)/flexinfer run demo "$(DEMO_PROMPT)" --ram $(DEMO_RAM) --max-tokens 96

test: $(VENV)/extras models ## Run all tests (installs their references, torch among them)
	$(BIN)/python -m pytest -q

# The runtimes must be there before Python is; what Python itself never frees is not looked for.
SANITIZED := build/sanitize
RUNTIMES = $(foreach name,asan ubsan,$(shell $(CXX) -print-file-name=lib$(name).so))
sanitize: $(VENV)/extras ## Run the kernels' tests under the address and undefined-behaviour sanitizers (GCC)
	@$(BIN)/cmake -S . -B $(SANITIZED) -G Ninja --log-level=WARNING -DFLEXINFER_SANITIZE=ON \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_CXX_COMPILER=$(CXX)
	@$(BIN)/cmake --build $(SANITIZED)
	LD_PRELOAD="$(RUNTIMES)" ASAN_OPTIONS=detect_leaks=0 FLEXINFER_TEST_KERNELS="$$(echo $(SANITIZED)/_kernels*.so)" \
	  $(BIN)/python -m pytest -q tests/test_kernels_*.py

check: $(VENV)/package $(VENV)/checkers ## Format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/checkers ## Put the format right, and what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/package models ## Speed at several budgets, measured beside predicted
	$(BIN)/flexinfer bench models/SmolLM2-135M-Instruct.Q4_1.gguf --ram 120MiB --ram 150MiB --ram 250MiB
	$(BIN)/flexinfer bench models/gemma-3-270m-q4_k_m.gguf --ram 200MiB --ram 300MiB --ram 500MiB

# With the Python, the torch and the build tools of the GPU's machine: nothing is downloaded.
gpu-check: ## Check on a CUDA GPU: right, how fast, within its memory (GPU_CHECK="--json FILE …")
	$(PYTHON) scripts/gpu_check $(if $(GPU_CHECK_WHEEL),--wheel $(GPU_CHECK_WHEEL)) $(GPU_CHECK)

models: $(VENV)/tools ## Fetch the two small real models that the tests use
	@$(BIN)/python scripts/fetch_models.py

clean: ## Remove what was built; models stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The build requirements live in the environment instead of pip's isolation: recompiling is then incremental.
$(VENV)/tools: constraints.txt
	@$(PYTHON) scripts/preflight.py
	@echo 'making $(VENV) with the build tools'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -q -c constraints.txt scikit-build-core nanobind cmake ninja
	@touch $@

# Editable: Python sources are used where they lie, only native ones need this again.
$(VENV)/package: $(VENV)/tools pyproject.toml $(NATIVE)
	@echo 'compiling the kernels and installing flexinfer: half a minute, more on a busy machine'
	@$(PIP) install -q -c constraints.txt --no-build-isolation -e .
	@touch $@

$(VENV)/checkers: $(VENV)/tools
	@echo 'installing ruff and mypy'
	@$(PIP) install -q -c constraints.txt ruff mypy
	@touch $@

$(VENV)/extras: $(VENV)/tools pyproject.toml | $(VENV)/package
	@echo 'installing what the tests compare with, torch and transformers among it: minutes'
	@$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[test,plot]'
	@touch $@
