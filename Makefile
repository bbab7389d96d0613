# Everything happens in .venv of this checkout; nothing needs to be installed by hand but Python, make and Java.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# Only files whose hashes a lock file names: also what builds packages that come as source is installed from one.
LOCKED := $(PIP) --require-hashes --no-build-isolation --no-deps
THIS := $(PIP) --no-build-isolation --no-deps -e .
# A package that a lock file lacks, on this platform or with this Python, is said here and not in the middle of a test.
COMPLETE := $(PY) -m pip --disable-pip-version-check check > /dev/null || { $(PY) -m pip check; exit 1; }
BUILD_LOCK := requirements-build.lock
# Processes that run tests.
WORKERS ?= 2
PROTOS := pyspark_ledger/zk_metadata/records pyspark_ledger/zk_metadata/format1
# pyproject.toml says which protoc is the oldest that is supported.
GRPCIO_TOOLS = $(shell sed -n 's/^proto = \["\(.*\)"\]/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help setup java prometheus browser demo docs test core spark lint coverage bench bench-quick bench-peers search kerberos soak fuzz guards simulate lock audit proto reference wheel clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

setup: java $(VENV)/.ready ## make .venv with everything pinned in requirements.lock; check Java

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; name yours: make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "could not make $(VENV); on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

# What the demo needs, and nothing for tests.
$(VENV)/.demo: pyproject.toml $(BUILD_LOCK) requirements-demo.lock | $(PY)
	@echo "Installing Spark and what else the demo needs into $(VENV)"
	@$(LOCKED) -r $(BUILD_LOCK)
	@$(LOCKED) -r requirements-demo.lock
	@$(THIS)
	@$(COMPLETE)
	@touch $@

$(VENV)/.ready: pyproject.toml $(BUILD_LOCK) requirements.lock | $(PY)
	@echo "Installing Spark, the test tools and the linters into $(VENV)"
	@$(LOCKED) -r $(BUILD_LOCK)
	@$(LOCKED) -r requirements.lock
	@$(THIS)
	@$(COMPLETE)
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

# A test asks Prometheus every expression of the dashboard and the alerts. Debian's package is unpacked into .venv: nothing
# is installed, no service is started, and no root is needed unless apt has no package lists yet.
PROMETHEUS := $(VENV)/prometheus

prometheus: ## Prometheus for the tests, into .venv, unless there is one
	@command -v prometheus >/dev/null && command -v promtool >/dev/null && exit 0; \
	test -x $(PROMETHEUS)/usr/bin/prometheus && exit 0; \
	if command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null; then \
	  echo "Unpacking Debian's package prometheus into $(PROMETHEUS), about 100 MB"; \
	  rm -rf $(PROMETHEUS).tmp && mkdir -p $(PROMETHEUS).tmp && cd $(PROMETHEUS).tmp && \
	  { apt-cache show prometheus >/dev/null 2>&1 || test "$$(id -u)" != 0 || apt-get update -qq; } && \
	  apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb && \
	  cd $(CURDIR) && rm -rf $(PROMETHEUS) && mv $(PROMETHEUS).tmp $(PROMETHEUS) && exit 0; \
	fi; \
	echo "The tests need Prometheus (prometheus and promtool in PATH). Please install it (Debian and Ubuntu:"; \
	echo "sudo apt-get install prometheus; macOS: brew install prometheus), and run make again."; \
	exit 1

# What the tests of the console use: the names under which Debian, Ubuntu, Google and macOS have them.
HAVE_BROWSER = { command -v chromium || command -v chromium-browser || command -v google-chrome || \
  test -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; } >/dev/null && \
  { command -v chromedriver || test -x "$$CHROMEWEBDRIVER/chromedriver"; } >/dev/null
INSTALL_BROWSER ?= yes

browser:
	@if $(HAVE_BROWSER); then exit 0; fi; \
	echo "The tests of the console need Chromium (or Chrome) and chromedriver, which are not here."; \
	if test "$(INSTALL_BROWSER)" != no -a "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
	  echo "So system packages are about to be installed with apt-get: chromium and chromium-driver, and what they need,"; \
	  echo "about 400 MB. INSTALL_BROWSER=no leaves the system as it is."; \
	  if test -t 0; then echo "Ctrl-C within five seconds stops it."; sleep 5; fi; \
	  apt-get update -qq; \
	  apt-get install -y -qq chromium chromium-driver; \
	  if $(HAVE_BROWSER); then exit 0; fi; \
	  echo "That did not bring them."; \
	fi; \
	echo "Please install them (Debian: sudo apt-get install chromium chromium-driver; Ubuntu: sudo snap install chromium;"; \
	echo "macOS: brew install --cask google-chrome chromedriver), and run make again."; \
	exit 1

demo: java $(VENV)/.demo ## write a stream, kill its driver twice, and count that nothing was lost or doubled
	@$(PY) -m examples.demo

# By file where Spark is started: the tests of a file share what they start. In the order of tests/conftest.py, which
# begins with the files that take longest; left alone, xdist begins with those that have most tests.
CORE_TESTS := $(PY) -m pytest -m "not spark and not soak" -n $(WORKERS)
SPARK_TESTS := $(PY) -m pytest -m "spark and not soak" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Both beside each other, because most tests wait for something most of the time. What the tests without Spark print comes
# at the end. A failure in either fails the command; whoever is interrupted ends both.
test: lint prometheus browser ## lint, types, import rules and all tests but the long ones
	@log=$$(mktemp); $(CORE_TESTS) >$$log 2>&1 & core=$$!; \
	trap 'test -z "$$core" || kill $$core 2>/dev/null; rm -f $$log' EXIT; trap 'exit 130' INT; trap 'exit 143' TERM; \
	echo "The tests that start Spark, and beside them the others, whose results follow:"; \
	$(SPARK_TESTS); spark=$$?; wait $$core; others=$$?; core=; \
	echo "The tests that need no Spark:"; cat $$log; test $$others -eq 0 && exit $$spark; exit $$others

core: setup prometheus ## the tests that need no Spark
	@$(CORE_TESTS)

spark: setup browser ## the tests that start Spark
	@$(SPARK_TESTS)

lint: setup ## ruff, mypy --strict, import rules
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Strict: a broken link, a page that mkdocs.yml leaves out, a public name without a docstring: each fails. Asks no network.
docs: setup ## build the documentation as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "The site is in site/: open site/index.html. With its search: $(PY) -m http.server -d site --bind 127.0.0.1"

coverage: setup prometheus ## lines and branches of the core that its tests pass; under 90 % is a reason to look
	@$(CORE_TESTS) --cov --cov-report=term --cov-report=json:.coverage.json
	@$(PY) -c 'import json; t = json.load(open(".coverage.json"))["totals"]; print("the core: {:.1%} of lines, {:.1%} of branches" \
	  .format(t["covered_lines"] / t["num_statements"], t["covered_branches"] / t["num_branches"]))'

# WHICH="seal/ gc/" takes those whose names contain one of these.
guards: setup ## take every guard of the protocols out, one after the other: does a test notice?
	$(PY) -m tests.guards $(WHICH)

bench: setup ## measure
	$(PY) -m benchmarks.run

bench-quick: setup ## a minute of it: reading and writing against the ceiling and Parquet, as ratios that nobody judges
	$(PY) -m benchmarks.run --only source,sink --rows 1000000 --rounds 1

# The peers need an environment of their own: the newest PySpark that all of them are built for, and their jars, by mvn.
PEERS := .venv-peers
# ROWS of 128 bytes (10 million; the other sizes follow), ROUNDS that count, ONLY=tiny,writers for some of the workloads,
# LONG=1 to let the ledger grow to a million commits, SMALL=1 for next to nothing of each, to see that it runs.
ROWS ?=
ROUNDS ?= 3
ONLY ?=
LONG ?=
SMALL ?=

PEERS_PIP := $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps

$(PEERS)/.ready: pyproject.toml $(BUILD_LOCK) requirements-peers.lock benchmarks/peers/jars.py
	@echo "Installing PySpark and what the peers need into $(PEERS), and their jars into .peers"
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@$(PEERS_PIP) --require-hashes -r $(BUILD_LOCK)
	@$(PEERS_PIP) --require-hashes -r requirements-peers.lock
	@$(PEERS_PIP) -e .
	@$(PEERS)/bin/python -m benchmarks.peers.jars .peers
	@touch $@

# What was measured replaces its part of docs/benchmarks.md. A run that is SMALL is only printed.
bench-peers: java $(PEERS)/.ready ## measure beside Kafka, Delta and Parquet; ONLY=tiny,writers for some of it
	@$(PEERS)/bin/python -m benchmarks.peers --rounds $(ROUNDS) $(if $(ROWS),--rows $(ROWS)) $(if $(ONLY),--only $(ONLY)) \
	  $(if $(LONG),--long) $(if $(SMALL),--small)
	@$(if $(SMALL),,$(PEERS)/bin/python -m benchmarks.peers.report .peers/results.json)

search: setup ## properties and state machines with new random examples, twenty times as many, and the long tests
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-search} $(PY) -m pytest -m "soak or hypothesis" -n $(WORKERS) --timeout 0

# How long faults last, and which: the same seed draws the same faults. Without one a random one is drawn and printed.
SECONDS ?= 600
SEED ?=
# So many producers more, which all write to one topic.
PRODUCERS ?= 0

kerberos: setup ## log in to ZooKeeper by Kerberos; needs Debian's krb5-kdc, krb5-admin-server and libkrb5-dev
	@for program in krb5kdc kdb5_util kadmin.local; do PATH="$$PATH:/usr/sbin" command -v $$program >/dev/null || { \
	  echo "$$program is needed: apt-get install krb5-kdc krb5-admin-server libkrb5-dev"; exit 1; }; done
	@$(LOCKED) -r requirements-kerberos.lock
	$(PY) -m pytest tests/zk_metadata/test_zk_kerberos.py

soak: setup ## real processes under real faults for SECONDS=600, drawn from SEED, and then the checker
	$(PY) -m tests.soak --seconds $(SECONDS) --producers $(PRODUCERS) $(if $(SEED),--seed $(SEED))

# How many histories, and from which seed on.
SEEDS ?= 1000

simulate: setup ## SEEDS=1000 simulated histories under every fault that we know, from SEED on
	$(PY) -m tests.simulation --seeds $(SEEDS) --seed $(or $(SEED),0)

# Of all parsers together, and which: all, or those whose names begin with TARGET.
INPUTS ?= 1000000
TARGET ?=

$(VENV)/.fuzz: $(VENV)/.ready requirements-fuzz.lock
	@echo "Installing atheris into $(VENV)"
	@$(LOCKED) -r requirements-fuzz.lock
	@touch $@

fuzz: setup $(VENV)/.fuzz ## every parser with a million inputs, none of which may raise but an error by name
	@$(PY) -m tests.support.fuzz --inputs $(INPUTS) --target '$(TARGET)' --seed $(or $(SEED),1)

# UPGRADE=yes takes the newest versions of everything.
UPGRADE ?= no

# Before there is a .venv, or if a lock file has a conflict, any pip will do.
lock: | $(PY) ## write requirements*.lock again: what pyproject.toml asks for, with the hashes of all its files
	$(PY) tools/lock.py $(if $(filter yes,$(UPGRADE)),--upgrade)

# Strict: a package that the service does not know was not looked at, and that is no good news.
audit: | $(PY) ## ask a service on the internet whether anything that is locked has a known weakness
	@test -x $(VENV)/audit/bin/python || $(PYTHON) -m venv $(VENV)/audit
	@$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-audit.lock
	$(VENV)/audit/bin/pip-audit --strict --disable-pip --require-hashes $(addprefix -r ,$(wildcard requirements*.lock))

proto: ## generate the protobuf code again, with the oldest protoc that is supported
	test -x $(VENV)/proto/bin/python || $(PYTHON) -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet --disable-pip-version-check '$(GRPCIO_TOOLS)' 'setuptools<81'
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(addsuffix .proto,$(PROTOS))
	for proto in $(PROTOS); do \
	  { echo '# mypy: ignore-errors'; cat $${proto}_pb2.pyi; } > $${proto}_pb2.tmp && mv $${proto}_pb2.tmp $${proto}_pb2.pyi || exit 1; \
	done

# Each picture ends with the hash of its source, so that a test finds one that was not rendered again.
.PHONY: pictures
pictures: ## render docs/pictures/*.dot as SVG, with Graphviz, and draw the plots of docs/benchmarks.md
	@command -v dot >/dev/null || { echo "Graphviz is needed: apt-get install graphviz, or brew install graphviz"; exit 1; }
	@for source in docs/pictures/*.dot; do \
	  hash=$$($(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' $$source) && \
	  dot -Tsvg $$source > $$source.tmp && echo "<!-- source: $$hash -->" >> $$source.tmp && \
	  mv $$source.tmp $${source%.dot}.svg || exit 1; \
	done
	@$(PYTHON) -m website.plots

reference: setup ## make the tables of docs/options.md from the code
	@$(PY) -m website.reference

wheel: setup ## build dist/*.whl
	$(PY) -m build --wheel --no-isolation

clean: ## remove what builds and tests leave behind (.venv stays)
	rm -rf dist build site .coverage .coverage.json .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .fuzz
	rm -rf spark-warehouse metastore_db artifacts derby.log
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
