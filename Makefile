# The project's chores. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
# All folders; CI's second run names some. The order is by cost and stands in tests/conftest.py.
TESTS ?= tests

# Two stamps, so that the demo need not wait for the checkers. Each is redone when pyproject or a pin changes.
DEMO_READY := $(VENV)/.demo-installed
DEV_READY := $(VENV)/.dev-installed

.PHONY: help venv demo test check format bench api docs-tables constraints clean need-python need-java

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(DEV_READY) ## create .venv with the pinned tools (Spark included: 400 MB)

demo: need-java $(DEMO_READY) ## start a real Pulsar, play all schemes, print the verdict, then the planner's prediction (ARGS="--seed 7"; 4 min after the first download)
	@$(VENV)/bin/timewheel demo $(ARGS)

test: need-java $(DEV_READY) ## run the whole test suite (TESTS=tests/core ARGS="-k route"; TIMEWHEEL_PULSAR_VERSION=4.2.4)
	@$(PY) -m pytest $(TESTS) $(ARGS)

check: $(DEV_READY) ## lint, format, types, import rules, packaging guards; no Java needed
	@echo "== ruff"; $(VENV)/bin/ruff check .
	@echo "== ruff format"; $(VENV)/bin/ruff format --check .
	@echo "== mypy"; $(VENV)/bin/mypy
	@echo "== pyright"; $(VENV)/bin/pyright
	@echo "== import-linter"; $(VENV)/bin/lint-imports
	@echo "== packaging"; $(PY) -m pytest tests/packaging -q

format: $(DEV_READY) ## let ruff repair what it can
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

bench: need-java $(DEV_READY) ## ask every benchmark its question (ARGS="--quick", "producer routing", "--write" for docs/benchmarks.md)
	@$(PY) -m benchmarks $(ARGS)

api: $(DEV_READY) ## write the public names to tests/packaging/public_api.txt
	@$(PY) -m tests.support.public_api > tests/packaging/public_api.txt.new
	@mv tests/packaging/public_api.txt.new tests/packaging/public_api.txt
	@git --no-pager diff --stat -- tests/packaging/public_api.txt

docs-tables: $(DEV_READY) ## write the tables of events and commands into docs
	@$(PY) -m tests.support.events_table
	@$(PY) -m tests.support.commands_table
	@git --no-pager diff --stat -- docs/events.md docs/commands.md

constraints: need-python ## pin all dependencies afresh, from a clean environment (Spark included: 400 MB)
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(PYTHON) -m venv "$$work/venv"; \
	"$$work/venv/bin/pip" install --quiet --upgrade pip; \
	"$$work/venv/bin/pip" install --quiet '.[all,dev]'; \
	{ echo "# Exact pins for development and CI. Written by: make constraints"; \
	  "$$work/venv/bin/pip" freeze --all --exclude pip --exclude pulsar-timewheel; } > constraints.txt
	@grep -c == constraints.txt | sed 's/$$/ packages pinned/'

clean: ## remove .venv and everything built
	@rm -rf $(VENV) build dist demo-out *.egg-info .coverage* .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY): | need-python
	@echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV)

$(DEMO_READY): pyproject.toml constraints.txt | $(PY)
	@echo "installing timewheel and its pinned dependencies into $(VENV) (Spark, by which the demo ends, is 400 MB of it)"
	@$(PY) -m pip install --quiet -c constraints.txt 'setuptools>=77'
	@$(PY) -m pip install -qq --no-build-isolation -c constraints.txt -e '.[planner,testing]'
	@touch $@

$(DEV_READY): $(DEMO_READY)
	@echo "installing the pinned development tools into $(VENV)"
	@$(PY) -m pip install -qq --no-build-isolation -c constraints.txt -e '.[planner,testing,dev]'
	@touch $@

need-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "timewheel needs Python 3.11 or newer as $(PYTHON) (Debian: apt-get install python3; or PYTHON=/path make ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "$(PYTHON) has no venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }

# A broker elsewhere (TIMEWHEEL_TEST_BROKER) does not spare these two: most broker tests restart and reconfigure their own.
need-java:
	@command -v java >/dev/null \
	  || { echo "the local Pulsar needs Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 1; }
	@version=$$(java -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -n 1); \
	  [ "$${version:-0}" -ge 17 ] \
	  || { echo "the local Pulsar needs Java 17 or newer, found $${version:-an unknown one} (Debian: apt-get install openjdk-17-jre-headless)" >&2; exit 1; }
	@command -v mvn >/dev/null \
	  || { echo "the local Pulsar is fetched with Maven (Debian: apt-get install maven)" >&2; exit 1; }
