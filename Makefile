# The project's chores. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
# Debian has a folder for each version of PostgreSQL, and puts none of them on the path.
POSTGRES_BINS ?= /usr/lib/postgresql/*/bin
VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
# All folders; some may be named. The order is by cost and stands in tests/conftest.py.
TESTS ?= tests
PURE := tests/producers tests/protocol tests/consumers tests/relay tests/inspect tests/shadow tests/demo tests/watch
# All that proofs ask a broker.
ON_BROKER := tests/broker tests/chaos
# pytest; a few that failed beside others are run once more, alone, and named.
RUN_TESTS := tests.support.run_tests
# More than cores: many tests on a broker mostly wait.
WORKERS ?= 4
# For `make proof`: words of their names as pytest's -k takes them ("short": the short plays, as CI makes them, which leave
# the page as it is); on which brokers; by how many seeds.
PROOFS ?= not short
# As many as may run side by side; one alone is the least disturbed.
PROOF_WORKERS ?= 1
VERSIONS ?= 4.0.7 4.2.4
SEEDS ?= 3
# Of `make soak`.
MINUTES ?= 30
RATE ?= 1000
# One share of the files, such as 1/8: CI takes turns.
SHARE ?=

# Two stamps, so that the demo need not wait for the checkers. Each is redone when pyproject or a pin changes.
DEMO_READY := $(VENV)/.demo-installed
DEV_READY := $(VENV)/.dev-installed

.PHONY: help venv demo test simulate soak proof check format bench api docs docs-tables constraints clean need-python need-java need-chromium need-stores

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

venv: $(DEV_READY) ## create .venv with the pinned tools (Spark included: 400 MB)

demo: need-java $(DEMO_READY) ## start a real Pulsar, play all schemes, print the planner's prediction and the verdict (ARGS="--seed 7"; a little over 3 min after the first download)
	@$(VENV)/bin/timewheel demo $(ARGS)

# First the core, then what else is pure, so that a slip there is seen within seconds; then all others side by side, since
# the tests on a broker mostly wait. Named folders run as they are. Code 5: ARGS chose no test of that part.
test: need-java need-chromium need-stores $(DEV_READY) ## all tests but the proofs, cheap ones first (TESTS=tests/core ARGS="-k route"; TIMEWHEEL_PULSAR_VERSION=4.2.4)
ifeq ($(TESTS),tests)
	@ran=; for part in "pytest tests/core --exitfirst" "pytest $(PURE) --exitfirst -n 2" \
	    "$(RUN_TESTS) tests --ignore=tests/core $(PURE:%=--ignore=%) -n $(WORKERS) --no-loadscope-reorder --one-broker"; do \
	  code=0; $(PY) -m $$part $(ARGS) || code=$$?; \
	  case $$code in 0) ran=1;; 5) ;; *) exit $$code;; esac; \
	done; \
	[ -n "$$ran" ] || { echo "no test was chosen" >&2; exit 5; }
else
	@$(PY) -m $(RUN_TESTS) $(TESTS) $(ARGS)
endif

# What needs no broker is proved once, with the first version. A proof that fails keeps none of the others from being tried.
proof: need-java need-chromium need-stores $(DEV_READY) ## what is long, written into docs/evidence.jsonl and its page (PROOFS="relay and killed" VERSIONS=4.2.4 SEEDS=1; hours)
	@ran=; failed=; tests="$(TESTS)"; for version in $(VERSIONS); do \
	  code=0; TIMEWHEEL_PULSAR_VERSION=$$version $(PY) -m $(RUN_TESTS) $$tests --proofs --seeds $(SEEDS) \
	    $(SHARE:%=--share %) --evidence docs/evidence.md -n $(PROOF_WORKERS) --no-loadscope-reorder -k "$(PROOFS)" $(ARGS) || code=$$?; \
	  case $$code in 0) ran=1;; 5) ;; *) failed=$$code;; esac; \
	  [ "$$tests" != tests ] || tests="$(ON_BROKER)"; \
	done; \
	[ -n "$$ran$$failed" ] || { echo "no proof was chosen" >&2; exit 5; }; \
	exit $${failed:-0}

simulate: $(DEV_READY) ## play seeds, services and faults on a virtual Pulsar (SEEDS=10000; ARGS="--table", or 17 for the story of a seed)
	@PYTHONHASHSEED=0 $(PY) -m tests.simulation --seeds $(if $(filter command%,$(origin SEEDS)),$(SEEDS),300) $(ARGS)

soak: need-java $(DEV_READY) ## all schemes on a real cluster under faults of nodes and services (MINUTES=30 RATE=1000)
	@SOAK_MINUTES=$(MINUTES) SOAK_RATE=$(RATE) $(PY) -m $(RUN_TESTS) tests/chaos/test_cluster.py --proofs --seeds 1 \
	  --evidence docs/evidence.md -k soak -s $(ARGS)

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

bench: need-java need-stores $(DEV_READY) ## ask every benchmark its question (ARGS="--quick", "producer routing", "--write" for docs/benchmarks.md)
	@$(PY) -m benchmarks $(ARGS)

api: $(DEV_READY) ## write the public names to tests/packaging/public_api.txt
	@$(PY) -m tests.support.public_api > tests/packaging/public_api.txt.new
	@mv tests/packaging/public_api.txt.new tests/packaging/public_api.txt
	@git --no-pager diff --stat -- tests/packaging/public_api.txt

docs: $(DEV_READY) ## build the site of all pages and public names in build/site; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open build/site/index.html; for the search: $(PY) -m http.server --directory build/site"

docs-tables: $(DEV_READY) ## write the tables of events, commands, findings, errors, signs of trouble, a relay's states and evidence into docs
	@$(PY) -m tests.support.tables
	@$(PY) -m tests.support.machine_table
	@$(PY) -m tests.support.consumer_table
	@$(PY) -m tests.support.runbook
	@$(PY) -m tests.support.specification_vectors
	@$(PY) -m tests.support.evidence
	@git --no-pager diff --stat -- docs/events.md docs/commands.md docs/evidence.md docs/how-to/check-a-setup.md docs/explanation/shadows.md docs/reference.md docs/runbook docs/how-to/metrics.md docs/state-machines.txt docs/specification-vectors.json

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
	@$(PY) -m pip install -qq --no-build-isolation -c constraints.txt -e '.[all,dev]'
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

# Said before all that takes long. By hand the tests of the reports are skipped then; in CI a skip is a failure.
need-chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { echo "the tests of the reports open them in Chromium, and it is not here (Debian: apt-get install chromium)" >&2; \
	       case "$${CI:-}" in 1|true|True|TRUE) exit 1;; *) echo "they will be skipped" >&2;; esac; }

# As above: what inboxes keep their claims in. Tests start servers of their own, and leave those of the machine alone.
need-stores:
	@missing=; \
	  command -v redis-server >/dev/null || missing="$$missing redis-server"; \
	  command -v initdb >/dev/null || compgen -G '$(POSTGRES_BINS)/initdb' >/dev/null || missing="$$missing postgresql"; \
	  [ -z "$$missing" ] \
	  || { echo "the tests of inboxes start a Redis and a PostgreSQL, and they are not here (Debian: apt-get install$$missing)" >&2; \
	       case "$${CI:-}" in 1|true|True|TRUE) exit 1;; *) echo "they will be skipped" >&2;; esac; }
