# The two commands a newcomer needs are `make run` and `make test`; each does all its own set-up in .venv.
SHELL  := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV   := .venv
VERL   := .venv-verl
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
ARGS   ?=
# `make test` runs whole test files side by side, three at a time, since a third of the time one waits.
# WORKERS=0 runs them one after the other in one process.
WORKERS ?= $(if $(filter 1,$(shell getconf _NPROCESSORS_ONLN)),0,3)
SIDE_BY_SIDE := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install dev run test test-long test-verl mutants check format bench system proto clean

help: ## show what can be made
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | awk 'BEGIN{FS=":.*?## "}{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; found: $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@echo "== making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run-ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing what \`make run\` needs (llama.cpp is built from source once: 2 to 4 minutes on 2 cores)"
	@$(BIN)/python -m tools.setup run
	@touch $@

$(VENV)/.dev-ready: pyproject.toml constraints.txt | $(BIN)/python
	@echo "== installing what \`make run\`, the tests and the checks need"
	@$(BIN)/python -m tools.setup dev
	@touch $(VENV)/.run-ready $@

install: $(VENV)/.run-ready ## set up .venv with everything `make run` needs

dev: $(VENV)/.dev-ready ## set up .venv with everything the tests and checks need

run: $(VENV)/.run-ready ## serve and learn until Ctrl-C; ARGS="--steps 40" ends by itself
	@$(BIN)/edge-agent run $(ARGS)

test: $(VENV)/.dev-ready system ## run the test suite; ARGS="-k ledger" narrows it
	@$(BIN)/python -m pytest -m "not long" $(SIDE_BY_SIDE) $(ARGS)

test-long: $(VENV)/.dev-ready system ## run the suites that take many minutes
	@$(BIN)/python -m pytest -m long $(ARGS)

test-verl: $(VERL)/.ready ## run verl's side inside verl, on the CPU, in an environment of its own (about 1.5 GB)
	@$(VERL)/bin/python -m pytest -p no:cacheprovider tests/unit/test_verl_*.py $(ARGS)

$(VERL)/.ready: tools/integrations/verl/requirements-test.txt | $(BIN)/python
	@echo "== installing verl into $(VERL)"
	@test -x $(VERL)/bin/python || $(BIN)/python -m venv $(VERL)
	@$(VERL)/bin/python -m pip install --quiet $$(grep '^torch==' constraints.txt) -r $<
	@$(VERL)/bin/python -m pip install --quiet --editable .
	@$(VERL)/bin/python -m pip install --quiet --no-deps verl==0.9.1 peft accelerate
	@touch $@

mutants: $(VENV)/.dev-ready ## plant about fifty bugs one by one and see a test fail on each; ARGS=dial narrows it
	@$(BIN)/python -m tools.mutants $(ARGS)

check: $(VENV)/.dev-ready ## format, lint, types, import contracts, proto drift, fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.codegen --check
	@found=$$($(BIN)/python -m pytest --collect-only -qq tests 2>&1) || { tail -n 40 <<<"$$found"; exit 1; } # every test file can be imported beside the others
	@$(BIN)/python -m pytest -q -m "not long" $(SIDE_BY_SIDE) tests/unit tests/paper

format: $(VENV)/.dev-ready ## rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.dev-ready ## measure learning steps; ARGS=table compares speed and memory with peers, side by side
	@$(BIN)/python -m tools.bench $(or $(ARGS),table --quick --rows floor)

proto: $(VENV)/.dev-ready ## generate edge/rpc/v1 from proto/
	@$(BIN)/python -m tools.codegen

system: ## install the system packages some tests use, where that is allowed
	@tools/system.sh

clean: ## remove build products (the virtual environment stays)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
