# Works from a clean clone with nothing but Python >= 3.11 and a package registry; needs no HOME
# and no PATH beyond the shell's default. Choose an interpreter with `make PYTHON=/path/to/python3`.

.DEFAULT_GOAL := help
.PHONY: help setup demo cluster test prove check bench

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Options of `make demo`, such as --json or --prompts 3.
DEMO_FLAGS ?=
# Options of `make cluster`, such as --once or --targets 3.
CLUSTER_FLAGS ?=

# An empty environment has no PATH, and children of a recipe would see none.
export PATH := $(or $(PATH),/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
# One compute thread in the test process; services get their threads by flag.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export HF_HUB_DISABLE_TELEMETRY ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## a virtual environment in .venv with pinned packages

demo: $(STAMP)  ## fetch the small model once, decode it across three processes, compare with plain decoding
	@$(BIN)/python -m deploy.cli demo $(DEMO_FLAGS)

cluster: $(STAMP)  ## two targets, two drafters, a coordinator on a local Ray cluster, under load, until Ctrl-C
	@$(BIN)/python -m deploy.cli deploy local $(CLUSTER_FLAGS)

test: $(STAMP)  ## the test suite (minutes)
	$(BIN)/python -m pytest -m "not prove"

prove: $(STAMP)  ## exactness on the real model and other long proofs
	$(BIN)/python -m pytest -m prove

check: $(STAMP)  ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not prove"

bench: $(STAMP)  ## list and run the yardsticks; NAME=equality runs one
	$(BIN)/python -m deploy.cli bench --list
	$(BIN)/python -m deploy.cli bench $(or $(NAME),all) --json

# pip leaves the stamp's folder alone, so the stamp stands for a finished installation only.
$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -c 'import pip' 2>/dev/null || { $(find_python) && \
	  echo "setup: virtual environment from $$found" && "$$found" -m venv --clear $(VENV); }
	@rm -f $@
	$(BIN)/python -m pip install --progress-bar on -c constraints.txt -e '.[all]'
	@touch $@

define find_python
found=; \
for candidate in "$(PYTHON)" python3.13 python3.12 python3.11 python3; do \
  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
  then found=$$candidate; break; fi; \
done; \
if [ -z "$$found" ]; then \
  echo "setup: no Python >= 3.11 with venv and ensurepip found; install one (Debian: apt-get install" >&2; \
  echo "       python3-venv) or name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; \
fi
endef
