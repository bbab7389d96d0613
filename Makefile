# Everything happens in .venv of this checkout; nothing needs to be installed by hand but Python, make and Java.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c requirements.lock
# Processes that run tests.
WORKERS ?= 2
PROTOS := pyspark_ledger/zk_metadata/records pyspark_ledger/zk_metadata/format1
# pyproject.toml says which protoc is the oldest that is supported.
GRPCIO_TOOLS = $(shell sed -n 's/^proto = \["\(.*\)"\]/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup java demo test core spark lint coverage bench search soak fuzz guards simulate proto wheel clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: java $(VENV)/.ready ## make .venv with everything pinned in requirements.lock; check Java

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; name yours: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "could not make $(VENV); on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# What the demo needs, and nothing for tests.
$(VENV)/.demo: pyproject.toml requirements.lock | $(PY)
	@echo "Installing Spark and what else the demo needs into $(VENV)"
	@$(PIP) -e '.[spark]'
	@touch $@

$(VENV)/.ready: pyproject.toml requirements.lock | $(PY)
	@echo "Installing Spark, the test tools and the linters into $(VENV)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.demo

# The major version of the java that Spark would take; empty if there is none.
JAVA_MAJOR = $$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p;' | head -n 1)
INSTALL_JAVA ?= yes

java:
	@have=$(JAVA_MAJOR); test "$${have:-0}" -ge 17 && exit 0; \
	echo "Spark and ZooKeeper need Java 17 or newer; found here: $${have:-none}."; \
	if test "$(INSTALL_JAVA)" != no -a "$$(id -u)" = 0 -a -z "$$JAVA_HOME" && command -v apt-get >/dev/null; then \
	  echo "So a system package is about to be installed with apt-get: openjdk-17-jre-headless, or where there is none"; \
	  echo "default-jre-headless, and what they need, about 200 MB. INSTALL_JAVA=no leaves the system as it is."; \
	  if test -t 0; then echo "Ctrl-C within five seconds stops it."; sleep 5; fi; \
	  apt-get update -qq; \
	  apt-get install -y -qq openjdk-17-jre-headless || apt-get install -y -qq default-jre-headless; \
	  have=$(JAVA_MAJOR); test "$${have:-0}" -ge 17 && exit 0; \
	  echo "That did not bring Java 17 or newer."; \
	fi; \
	echo "Please install it (Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless; macOS: brew install --cask temurin@17),"; \
	echo "or set JAVA_HOME to where one is, and run make again."; \
	exit 1

demo: java $(VENV)/.demo ## write a stream, kill its driver twice, and count that nothing was lost or doubled
	@$(PY) -m examples.demo

# By file where Spark is started: the tests of a file share what they start. In the order of tests/conftest.py, which
# begins with the files that take longest; left alone, xdist begins with those that have most tests.
CORE_TESTS := $(PY) -m pytest -m "not spark and not soak" -n $(WORKERS)
SPARK_TESTS := $(PY) -m pytest -m "spark and not soak" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What needs no Spark comes first, what does comes second, also after failures in the first (pytest's status 1), but not
# if that was interrupted or could not run at all. A failure in either fails the command.
test: lint ## lint, types, import rules and all tests but the long ones
	@$(CORE_TESTS); core=$$?; test $$core -le 1 || exit $$core; $(SPARK_TESTS) && exit $$core

core: setup ## the tests that need no Spark
	@$(CORE_TESTS)

spark: setup ## the tests that start Spark
	@$(SPARK_TESTS)

lint: setup ## ruff, mypy --strict, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

coverage: setup ## lines and branches of the core that its tests pass; under 90 % is a reason to look
	@$(CORE_TESTS) --cov --cov-report=term --cov-report=json:.coverage.json
	@$(PY) -c 'import json; t = json.load(open(".coverage.json"))["totals"]; print("the core: {:.1%} of lines, {:.1%} of branches" \
	  .format(t["covered_lines"] / t["num_statements"], t["covered_branches"] / t["num_branches"]))'

# WHICH="seal/ gc/" takes those whose names contain one of these.
guards: setup ## take every guard of the protocols out, one after the other: does a test notice?
	$(PY) -m tests.guards $(WHICH)

bench: setup ## measure
	$(PY) -m benchmarks.run

search: setup ## properties and state machines with new random examples, twenty times as many, and the long tests
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-search} $(PY) -m pytest -m "soak or hypothesis" -n $(WORKERS) --timeout 0

# How long faults last, and which: the same seed draws the same faults. Without one a random one is drawn and printed.
SECONDS ?= 600
SEED ?=
# So many producers more, which all write to one topic.
PRODUCERS ?= 0

soak: setup ## real processes under real faults for SECONDS=600, drawn from SEED, and then the checker
	$(PY) -m tests.soak --seconds $(SECONDS) --producers $(PRODUCERS) $(if $(SEED),--seed $(SEED))

# How many histories, and from which seed on.
SEEDS ?= 1000

simulate: setup ## SEEDS=1000 simulated histories under every fault that we know, from SEED on
	$(PY) -m tests.simulation --seeds $(SEEDS) --seed $(or $(SEED),0)

# Of all parsers together, and which: all, or those whose names begin with TARGET.
INPUTS ?= 1000000
TARGET ?=

$(VENV)/.fuzz: $(VENV)/.ready
	@echo "Installing atheris into $(VENV)"
	@$(PIP) -e '.[fuzz]'
	@touch $@

fuzz: setup $(VENV)/.fuzz ## every parser with a million inputs, none of which may raise but an error by name
	@$(PY) -m tests.support.fuzz --inputs $(INPUTS) --target '$(TARGET)' --seed $(or $(SEED),1)

proto: ## generate the protobuf code again, with the oldest protoc that is supported
	test -x $(VENV)/proto/bin/python || $(PYTHON) -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet --disable-pip-version-check '$(GRPCIO_TOOLS)' 'setuptools<81'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(addsuffix .proto,$(PROTOS))
	for proto in $(PROTOS); do \
	  { echo '# mypy: ignore-errors'; cat $${proto}_pb2.pyi; } > $${proto}_pb2.tmp && mv $${proto}_pb2.tmp $${proto}_pb2.pyi || exit 1; \
	done

# Each picture ends with the hash of its source, so that a test finds one that was not rendered again.
.PHONY: pictures
pictures: ## render docs/pictures/*.dot as SVG, with Graphviz
	@command -v dot >/dev/null || { echo "Graphviz is needed: apt-get install graphviz, or brew install graphviz"; exit 1; }
	@for source in docs/pictures/*.dot; do \
	  hash=$$($(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' $$source) && \
	  dot -Tsvg $$source > $$source.tmp && echo "<!-- source: $$hash -->" >> $$source.tmp && \
	  mv $$source.tmp $${source%.dot}.svg || exit 1; \
	done

wheel: setup ## build dist/*.whl
	$(PY) -m build --wheel --no-isolation

clean: ## remove what builds and tests leave behind (.venv stays)
	rm -rf dist build .coverage .coverage.json .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .fuzz
	rm -rf spark-warehouse metastore_db artifacts derby.log
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
