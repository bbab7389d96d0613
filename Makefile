# Everything happens in .venv of this checkout; nothing needs to be installed by hand but Python and make.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROTO := pyspark_ledger/zk_metadata/records
# pyproject.toml says which protoc is the oldest that is supported.
GRPCIO_TOOLS = $(shell sed -n 's/^proto = \["\(.*\)"\]/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup java demo test lint bench soak proto wheel clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.ready java ## make .venv with everything pinned in requirements.lock; check Java

$(VENV)/.ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; name yours: make setup PYTHON=python3.12"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "could not make $(VENV); on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev]'
	@touch $@

# The major version of the java that Spark would take; 0 if there is none.
JAVA_MAJOR = $$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p;' | head -n 1)

java:
	@have=$(JAVA_MAJOR); test "$${have:-0}" -ge 17 && exit 0; \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null && test -z "$$JAVA_HOME"; then \
	  echo "no Java 17 or newer: installing it with apt-get"; \
	  apt-get update -qq; \
	  apt-get install -y -qq openjdk-17-jre-headless || apt-get install -y -qq default-jre-headless; \
	fi; \
	have=$(JAVA_MAJOR); test "$${have:-0}" -ge 17 || { \
	  echo "Java 17 or newer is needed (found: $${have:-none}): install it, or set JAVA_HOME"; exit 1; }

demo: setup ## write a stream, kill its driver twice, and count that nothing was lost or doubled
	$(PY) -m examples.demo

test: setup lint ## lint, types, import rules and all tests but the long ones
	$(PY) -m pytest -m "not soak"

lint: setup ## ruff, mypy --strict, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

bench: setup ## measure
	$(PY) -m benchmarks.run

soak: setup ## the long runs: random faults for as long as they take
	$(PY) -m pytest -m soak --timeout 0

proto: ## generate the protobuf code again, with the oldest protoc that is supported
	test -x $(VENV)/proto/bin/python || $(PYTHON) -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet --disable-pip-version-check '$(GRPCIO_TOOLS)' 'setuptools<81'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTO).proto
	sed -i '1i # mypy: ignore-errors' $(PROTO)_pb2.pyi

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
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf spark-warehouse metastore_db artifacts derby.log
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
