# Set up, build, demonstrate, test. The environment is .venv; set-up runs again only when a source has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL := build/tiny-k3.gguf
CHECKPOINT := tests/data/tiny-k3
SOURCES := pyproject.toml CMakeLists.txt scripts/find_ggml.py \
	$(shell find python convert ggml_k3 llama_k3 -type f -not -path '*/__pycache__/*')

.DEFAULT_GOAL := help
.PHONY: help demo test tools

help:
	@echo "make demo   set up, build, convert the shipped checkpoint and talk to it"
	@echo "make test   set up, build, run the style checks and all tests"
	@echo "Both need Python 3.10 or newer with venv, a C compiler and CMake; PYTHON=... picks the interpreter."

tools:
	@command -v $(PYTHON) >/dev/null \
		|| { echo "error: $(PYTHON) not found: apt install python3 python3-venv python3-dev"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "error: found $$($(PYTHON) --version 2>&1), wanted Python 3.10 or newer (make PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "error: Python's venv not found: apt install python3-venv"; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
		sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' \
		|| { echo "error: Python.h not found: apt install python3-dev"; exit 1; }
	@command -v cc >/dev/null || { echo "error: no C compiler found: apt install build-essential"; exit 1; }
	@command -v cmake >/dev/null || { echo "error: cmake not found: apt install cmake"; exit 1; }

$(BIN)/python: | tools
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(SOURCES) | $(BIN)/python
	@echo "building and installing into $(VENV): about half a minute"
	$(PIP) install --quiet .
	@touch $@

$(VENV)/installed-for-tests: $(SOURCES) | $(BIN)/python
	@echo "building and installing into $(VENV), with torch and other engines to compare with: some minutes"
	$(PIP) install --quiet '.[test]'
	@touch $@ $(VENV)/installed

$(MODEL): $(VENV)/installed $(wildcard $(CHECKPOINT)/*)
	@mkdir -p build
	$(BIN)/convert-k3 $(CHECKPOINT) --outfile $@

demo: $(MODEL)
	@for question in "Who are you?" "What is 27 + 15?" "Repeat after me: seven red boats"; do \
		printf '\n> %s\n' "$$question"; \
		$(BIN)/llama-cli -m $(MODEL) --temp 0 -st -p "$$question" || exit 1; \
	done
	@if [ -t 0 ]; then printf '\n'; $(BIN)/llama-cli -m $(MODEL) --temp 0; fi

test: $(VENV)/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(shell find ggml_k3 llama_k3 python tests -name '*.c' -o -name '*.h')
	$(BIN)/mypy
	$(BIN)/python scripts/check_style.py
	$(BIN)/python -m pytest
