# What one does with this repository. `make demo` is the first command after a clone; it needs Python 3.11 and nothing
# else. Steps that were done are not repeated until pyproject.toml changes.

PYTHON ?= python3
WORKERS ?= 2
BROKER_WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest
# Without npm, the tests of the JavaScript SDKs are skipped with the reason.
SDKS := $(if $(shell command -v npm),tests/js/node_modules examples/screens/node_modules)
# The bundle of the page of `reknit demo --screens`.
PAGES := examples/screens/dist/both.js

.DEFAULT_GOAL := help
.PHONY: help demo test lint format unit broker sdks examples frameworks chaos simulate heal soak bench mutants release wheels newest record resume clients served kafka modules schemas docs site pictures deploy clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ARGS ?= --once
demo: $(VENV)/.runtime $(if $(findstring --screens,$(ARGS)),$(PAGES)) ## run the whole pipeline here, embedded broker included (ARGS for `reknit demo`)
	@$(BIN)/reknit demo $(ARGS)

# One after the other, also under -j, and the first failure stops: the last line is pytest's.
test: ## everything that must hold: lint, unit, broker
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory broker

lint: $(VENV)/.dev ## ruff and mypy
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run 'make format'" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary

format: $(VENV)/.dev ## format, and fix what ruff can fix
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

unit: $(VENV)/.dev $(SDKS) ## tests that need no broker of their own, in parallel
	@$(PYTEST) -n $(WORKERS) --ignore=tests/broker --ignore=tests/benchmarks tests

# Files in their order: those with few tests, which last longest, come early (test_chaos). These tests wait more than they
# compute, so there is one process more.
broker: $(VENV)/.dev ## tests on a real Apache Kafka; without Java 17 skipped, or failed with REKNIT_REQUIRE_KAFKA=1
	@$(PYTEST) -n $(BROKER_WORKERS) --dist loadfile --no-loadscope-reorder tests/broker

sdks: tests/js/node_modules examples/screens/node_modules ## install the JavaScript packages that tests run (npm)

tests/js/node_modules examples/screens/node_modules: %/node_modules: %/package.json
	@command -v npm >/dev/null || { echo "this needs Node.js 20 and npm" >&2; exit 1; }
	@npm install --prefix $* --no-package-lock --no-audit --no-fund --loglevel=error
	@touch $@

frameworks: $(VENV)/.dev ## make the environments of the frameworks that tests run, each again when its requirements change
	@$(BIN)/python tests/frameworks/environments.py $(ARGS)

examples: $(PAGES) ## build the pages of examples/screens (npm)

$(PAGES): examples/screens/node_modules $(wildcard examples/screens/src/*) js/screens.js
	@npm run --silent --prefix examples/screens build

chaos: $(VENV)/.dev ## let three brokers and two workers undergo every fault, with an audit after each; writes build/chaos.md
	@$(BIN)/python tests/chaos/run.py $(ARGS)

simulate: $(VENV)/.dev ## run seeded fault schedules of the engine on a model of Kafka (ARGS="--seeds 10000")
	@$(BIN)/python tests/simulation/run.py $(ARGS)

heal: $(VENV)/.dev ## run refused sessions against a mock provider, and compare clients (ARGS="--sessions 2000")
	@$(BIN)/python tests/mock_provider/run.py $(ARGS)

soak: $(VENV)/.dev ## run 100,000 exchanges through `reknit serve` with kills and outages, and audit the topics; writes build/soak.md
	@$(BIN)/python tests/soak/run.py $(ARGS)

bench: $(VENV)/.dev ## measure the budgets beside the peers; writes build/benchmarks.md
	@$(BIN)/python tests/benchmarks/run.py $(ARGS)

# In an environment of its own: with what mutmut brings along, Faust renames its processes.
mutants: ## change the core in small ways and show what no test notices (ARGS="--sample 200 --seed 1")
	@$(MAKE) --no-print-directory VENV=$(VENV)-mutants $(VENV)-mutants/.mutants
	@$(VENV)-mutants/bin/python tests/mutants.py $(ARGS)

release: ## build the archives of a release twice, compare and check them; writes build/release
	@$(MAKE) --no-print-directory VENV=$(VENV)-release $(VENV)-release/.release
	@$(VENV)-release/bin/python deploy/release.py $(ARGS)

wheels: $(VENV)/.python ## print for which Pythons and platforms every extra has wheels (ARGS="--python 3.14")
	@$(BIN)/python deploy/wheels.py $(ARGS)

newest: $(VENV)/.dev ## run the contract tests with the newest aiokafka, Faust and mode, and print the result
	@$(BIN)/python tests/contracts/newest.py $(ARGS)

record: $(VENV)/.dev ## run the real Codex and Gemini CLIs (npm) against a scripted API, with no other network; needs root
	@$(BIN)/python tests/record/agents.py $(ARGS)

resume: $(VENV)/.dev ## resume damaged sessions with the real Claude Code, Codex and Gemini CLI (npm), before and after `reknit repair`
	@$(BIN)/python tests/clients/resume.py $(ARGS)

clients: $(VENV)/.dev ## let the real Claude Code and Codex (npm) resume session files that Reknit wrote, then `make served`
	@$(BIN)/python tests/clients/written.py $(ARGS)
	@$(if $(ARGS),,$(MAKE) --no-print-directory served)

served: $(VENV)/.dev tests/js/node_modules ## run Claude Code, Codex, Gemini CLI, LangChain, pydantic-ai and the AI SDK through `reknit serve`, with faults
	@$(BIN)/python tests/frameworks/environments.py langchain pydantic-ai
	@$(BIN)/python tests/clients/through_gateway.py $(ARGS)

kafka: ## a local Apache Kafka on port 9092 until Ctrl-C (Java 17; Maven the first time)
	@deploy/kafka/run $(ARGS)

modules: ## report modules that may hold more than one idea (ARGS="pipeline/cli")
	@$(PYTHON) tests/module_report.py $(ARGS)

schemas: $(VENV)/.runtime ## write topics/schemas and topics/asyncapi.json from the records
	@$(BIN)/reknit topics schemas --write topics
	@$(BIN)/reknit topics asyncapi --write topics

docs: $(VENV)/.runtime ## write the generated pages of docs/: fixes, rules, streams, configuration and the reference
	@$(BIN)/reknit explain --write docs

site: $(VENV)/.dev ## build the site of the docs into build/site, with every link checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict $(ARGS)
	@echo "build/site/index.html"

pictures: $(VENV)/.dev examples/screens/node_modules ## take the pictures in docs/pictures, and the viewer's pages at three widths in build/walk (Chromium)
	@REQUIRE_BROWSER=1 REKNIT_PICTURES=docs/pictures REKNIT_WALK=build/walk $(PYTEST) -q tests/unit/test_viewer_walk.py
	@PYTHONPATH=tests $(BIN)/python tests/screens_pictures.py

deploy: $(VENV)/.dev ## write the dashboards and the generated Kubernetes manifests
	@$(BIN)/python -W ignore deploy/grafana/dashboards.py
	@$(BIN)/python deploy/kubernetes/resources.py

clean: ## remove caches and local state
	rm -rf .reknit .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
	find reknit pipeline topics tests deploy -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment and the broker's jars as well
	rm -rf $(VENV) $(VENV)-mutants $(VENV)-release .venv-frameworks deploy/kafka/lib tests/js/node_modules examples/screens/node_modules

# One stamp for each step, newer than what it was made from.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is not Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "$(PYTHON) cannot make environments (on Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "making an environment in $(VENV) and installing Reknit into it, once; this takes a minute" >&2
	@$(PYTHON) -m venv $(VENV)
	@# Dependency groups need pip 25.1; the one that comes with Python 3.11 is older.
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml
	@$(PIP) install --editable '.[embedded]'
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@$(PIP) install --group dev
	@touch $@

$(VENV)/.release: $(VENV)/.python pyproject.toml
	@$(PIP) install --group release
	@touch $@

$(VENV)/.mutants: $(VENV)/.dev
	@$(PIP) install --group mutants
	@touch $@
