# Needs Python 3.11 or newer with pip, and GNU make. Everything else comes into .venv, pinned by hash.

PYTHON ?= python3
# demo: stop after so many seconds; KAFKA=1 for a real Kafka under it.
FOR ?=
KAFKA ?=
# bench: which one; JSON=1 for one JSON object, QUICK=1 for less exact and sooner.
NAME ?= log
JSON ?=
QUICK ?=
# test, crash: what else pytest should be told.
PYTEST_ARGS ?= -n 2 --dist loadgroup
# lock: UPGRADE=1 moves every pin to the newest release; without it, pins stay where they can.
UPGRADE ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-annotate --custom-compile-command "make lock" $(if $(call on,$(UPGRADE)),--upgrade)

# Set by hand, a switch may also be 0.
on = $(filter-out 0,$(1))
# Resolved when the recipe runs: bringing Java can be part of the run.
WITH_JAVA = JAVA_HOME=$$(sh scripts/java.sh $(VENV)) && export JAVA_HOME &&
# Of the tests' hundred processes with Spark most end before a thorough compiler would have paid.
WITH_QUICK_SPARK = $(WITH_JAVA) SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=$(CURDIR)/$(VENV)/spark.jsa -XX:TieredStopAtLevel=1"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check crash bench lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## see it work (FOR=30 stops after half a minute, KAFKA=1 is on a real Kafka)
	@$(WITH_JAVA) $(BIN)/penstock demo $(if $(FOR),--for $(FOR)) $(if $(call on,$(KAFKA)),--kafka)

test: $(VENV)/.dev $(VENV)/spark.jsa ## every test but the long fault runs (PYTEST_ARGS="-n 2")
	@sh scripts/servers.sh
	@$(WITH_QUICK_SPARK) $(BIN)/pytest -m "not crash" $(PYTEST_ARGS)

check: $(VENV)/.dev ## lint, format, types, layers, tidiness
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/pytest -q tests/test_tidy.py

crash: $(VENV)/.dev $(VENV)/spark.jsa ## the long fault runs
	@sh scripts/servers.sh
	@$(WITH_QUICK_SPARK) $(BIN)/pytest -m crash $(PYTEST_ARGS)

bench: $(VENV)/.dev ## one benchmark (NAME=log JSON=1 QUICK=1)
	@$(WITH_JAVA) $(BIN)/penstock bench $(NAME) $(if $(call on,$(QUICK)),--quick) $(if $(call on,$(JSON)),--json)

# runtime first and dev within it, so that both fit into one .venv.
lock: $(BIN)/python ## recompute requirements/*.lock from pyproject.toml (UPGRADE=1)
	@test -x $(BIN)/uv || $(PIP) install uv
	@$(COMPILE) pyproject.toml --group build --extra spark --extra gateway --extra sourcing --extra kafka --extra search -o requirements/runtime.lock
	@$(COMPILE) pyproject.toml --group build --extra dev -c requirements/runtime.lock -o requirements/dev.lock
	@$(COMPILE) --group java -o requirements/java.lock

clean: ## remove .venv, caches and build output (.penstock is data, and stays)
	@rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@sh scripts/venv.sh $(PYTHON) $(VENV)

# Progress goes to stderr: `make bench JSON=1` must print one JSON object and nothing else.
$(VENV)/.runtime $(VENV)/.dev: $(VENV)/.%: requirements/%.lock pyproject.toml | $(BIN)/python
	@echo "installing $< into $(VENV)" >&2
	@$(PIP) install --require-hashes -r $<
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@ $(if $(filter %/.dev,$@),$(VENV)/.runtime) # dev.lock holds all of runtime.lock

$(VENV)/spark.jsa: scripts/quick_spark.py $(VENV)/.dev
	@echo "keeping the classes of Spark in $@" >&2
	@$(WITH_JAVA) $(BIN)/python $< $@ || echo "the tests take longer without" >&2
