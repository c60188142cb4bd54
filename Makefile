# One command per chore. `make` alone lists them.

PYTHON ?= python3
BIN := .venv/bin
SWEEP ?= --quick --out out/perf/quick --overwrite
ONNX := model_repository/face_detector/1/model.onnx model_repository/face_mesh/1/model.onnx

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint format models serve perf load clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: .venv/.server models ## Set everything up and turn the sample photo into a 3D face on the CPU
	$(BIN)/facegraph reconstruct samples/astronaut.jpg --out out/demo --overwrite

test: .venv/.dev models ## Set everything up and run every test
	$(BIN)/pytest

test-fast: .venv/.dev models ## Run the tests that take less than about 20 seconds each
	$(BIN)/pytest -m "not slow"

lint: .venv/.dev ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev ## Bring the code into its style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

models: .venv/.server ## Fetch the weights and build the ONNX models
	$(BIN)/python scripts/build_models.py

serve: .venv/.server models ## Leave a server running on ports 8000 (HTTP), 8001 (gRPC), 8002 (metrics)
	$(BIN)/python scripts/serve.py

perf: .venv/.perf models ## Measure with perf_analyzer into out/perf/quick, under five minutes; all of it: make perf SWEEP=
	$(BIN)/python perf/sweep.py $(SWEEP)

load: .venv/.perf models ## Load a private server with Locust into out/load, under 90 seconds
	$(BIN)/python perf/run_load.py

clean: ## Remove what the other commands made, the virtual environment included
	rm -rf .venv build out $(ONNX) model_repository/*/1/*.plan

.venv/.python:
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 12) else f"facegraph needs Python 3.10 to 3.12, this is {v[0]}.{v[1]}; name another one: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.server: .venv/.python pyproject.toml
	@echo 'installing into .venv: about 1 GB, one to three minutes'
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[server]'
	@touch $@

.venv/.dev: .venv/.server
	@echo 'installing what the tests need: torch, TensorRT for RTX, linters'
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[server,gpu,dev]'
	@touch $@

.venv/.perf: .venv/.server
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[server,perf]'
	@touch $@
