# Thin: every target is one or two lines; the work is done by the tools they name.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate --universal --python-version 3.11

.DEFAULT_GOAL := help
.PHONY: help setup run test check format unit integration stack bench lock clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with everything pinned in requirements-dev.lock

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Drystone needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "Installing into $(VENV), once; about a minute."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

run: setup ## See it work: every service in one process, a simulated cluster, real tasks (Python only)
	@$(BIN)/drystone run

test: setup ## Everything: lint, types, layers, unit, property, scenarios, integration and end-to-end on real parts
	@$(BIN)/python -m tools.ci

check: setup ## Lint, types and layers only
	@$(BIN)/python -m tools.ci lint types layers

format: setup ## Format the code, mend what the linter can mend, wrap the documents
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && $(BIN)/python -m tools.prose

unit: setup ## Unit, property, scenario and component tests (no servers)
	@$(BIN)/python -m tools.ci unit

integration: setup ## Tests on real Kafka, Redis and kube-apiserver (built once into a cache)
	@$(BIN)/python -m tools.ci real

stack: setup ## Start the real parts locally and print their addresses
	@$(BIN)/drystone stack up

bench: setup ## The pipeline against kube-scheduler on the same API server
	@$(BIN)/drystone bench pipeline --nodes 1000 --pods 2000 --against kube-scheduler --json

lock: setup ## Renew requirements-dev.lock, and requirements.lock (what the image has) as a part of it
	@$(BIN)/python -m pip install --quiet uv && $(BIN)/uv pip compile pyproject.toml --extra dev $(LOCK) --output-file requirements-dev.lock
	@$(BIN)/uv pip compile pyproject.toml --constraint requirements-dev.lock $(LOCK) --output-file requirements.lock

clean: ## Remove .venv and caches of the tools (not the built control plane)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
