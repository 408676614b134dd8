# Two commands on a fresh machine: `make demo` and `make test`. Both install first.
# A CPU build of torch is enough without a GPU: on Linux, TORCH_ARGS="--index-url <PyTorch's CPU index>" saves about 3 GB.
PYTHON ?= python3
TORCH_ARGS ?=
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PROFILE ?= smollm2-135m
# The tests of one file stay in one process: the end-to-end ones, which come first, share a chain.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: install demo test test-all lint unit bundle clean

install: $(VENV)/.installed

$(VENV)/.installed: requirements/cpu.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or 3.12 is needed; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11") if not (3, 11) <= sys.version_info[:2] <= (3, 12) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade "pip>=25" setuptools wheel
	$(BIN)/pip install --quiet $(PIP_ARGS) $(TORCH_ARGS) --constraint requirements/cpu.txt torch
	$(BIN)/pip install $(PIP_ARGS) --no-deps --requirement requirements/cpu.txt
	$(BIN)/pip install --quiet --no-deps --editable .
	touch $@

demo: install
	$(BIN)/grpo-pipeline run --profile $(PROFILE)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: install
	$(PYTEST)

test: lint unit

test-all: lint
	$(PYTEST) -m "slow or not slow"

# Everything a GPU worker installs, as wheels for a machine without a package index (docs/gpu.md). Needs Python 3.12 on the worker's kind of Linux.
bundle:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.12 is needed; this is " + sys.version.split()[0] + ". Set PYTHON=python3.12") if sys.version_info[:2] != (3, 12) else None'
	rm -rf bundle
	$(PYTHON) -m pip wheel $(PIP_ARGS) --no-deps --wheel-dir bundle --requirement requirements/gpu.txt .

clean:
	rm -rf $(VENV) bundle build dist *.egg-info
