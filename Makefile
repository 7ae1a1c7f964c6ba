# Set-up needs only Python >= 3.11 with its headers, make and a C++ compiler.
#   make demo      train the digits classifier three ways
#   make test      all tests (what CI runs)
#   make check     formatting, lint, types, then all tests
#   make nightly   slow and exhaustive tests as well
#   make golden    rewrite the golden texts in tests/golden
#   make notebooks execute the notebooks in place
#   make bench     host benchmarks

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: demo test check lint format nightly bench golden notebooks clean help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
# Two workers by default: the suite starts compilers and torch processes of its own.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# The first Python that is new enough; PYTHON=... overrides.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python3.14; do \
	if $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	echo $$name; break; fi; done)

help:
	@sed -n 's/^#   //p' Makefile

# ---- environment. Each stamp is written last, so an interrupted set-up is taken up again.
$(VENV)/.created:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "error: trnx needs Python 3.11 or newer and none was found; install one or run make PYTHON=/path/to/python3" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is older than Python 3.11; run make PYTHON=/path/to/a/newer/python3" >&2; exit 1; }
	@echo "set-up: creating $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import os, sys, sysconfig; p = sysconfig.get_path("include") + "/Python.h"; \
	  os.path.exists(p) or sys.exit(f"error: the C headers of Python are missing ({p}); install them (python3-dev)")'
	@touch $@

# torch before the project: its extension is compiled against the torch that is installed.
$(VENV)/.torch: $(VENV)/.created constraints.txt
	@echo "set-up: installing PyTorch (about a minute)"
	$(PIP) "setuptools>=77" wheel
	$(PIP) -c constraints.txt torch
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml setup.py build_support/trnx_backend.py
	@echo "set-up: installing trnx"
	$(PIP) -c constraints.txt --no-build-isolation -e ".[torch,demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "set-up: installing what the tests need"
	$(PIP) -c constraints.txt --no-build-isolation -e ".[torch,jax,notebook,demo,dev]"
	@touch $@

# The extension: quick when it is up to date, about a minute when it is not.
.PHONY: extension
extension: $(VENV)/.demo
	@if [ -f trnx_torch/__main__.py ]; then $(BIN)/python -m trnx_torch build; fi

# ---- what people type
demo: $(VENV)/.demo extension
	@$(BIN)/python examples/digits.py

test: $(VENV)/.dev extension
	$(PYTEST) -m "not nightly"

check: lint test

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

nightly: $(VENV)/.dev extension
	$(PYTEST) --hypothesis-profile=nightly

bench: $(VENV)/.dev extension
	$(BIN)/python -m benchmarks host

golden: $(VENV)/.dev extension
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not nightly" --update-golden

notebooks: $(VENV)/.dev extension
	$(BIN)/python -m tools.notebooks

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
