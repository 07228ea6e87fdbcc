# Development tasks. Tools are installed into .venv, and the jars of Kafka, Spark and the schema registry into .jars.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JARS := .jars
# pyenv's `python3.10` shim needs PYENV_VERSION.
OLDEST_PYTHON ?= $(shell PYENV_VERSION=3.10 python3.10 -c 'import sys; print(sys.executable)' 2>/dev/null || echo $(PYTHON))
N ?= 1000000
# The versions of pyspark on which the smoke suite runs in addition to the newest. Each has its own venv.
SPARKS := $(shell cat tests/spark/pyspark_versions.txt)
SPARK_VENVS := $(SPARKS:%=.venv-pyspark-%/.up-to-date)
SPARK_ARCHIVES := $(SPARKS:%=.venv-pyspark-%/spark.jsa)
# `make soak` and `make spark-matrix` also run on 4.2.1.
ALL_SPARKS := $(SPARKS) 4.2.1
ALL_SPARK_VENVS := $(ALL_SPARKS:%=.venv-pyspark-%/.up-to-date)
MATRIX := build/spark-matrix
MINIMUMS := .venv-minimums
SAIL := .venv-sail
BUILD := .venv-build

# Spark's workers must run the interpreter of the driver; otherwise, they lack its packages.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9%-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.up-to-date ## create .venv with all tools (does nothing if it is up to date)

# Python compiles a module when it is first imported. Most installed modules never are.
INSTALL := pip install --quiet --no-compile

$(VENV)/.up-to-date: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m $(INSTALL) --upgrade pip
	$(BIN)/python -m $(INSTALL) --editable '.[dev]'
	touch $@

.PHONY: kafka
kafka: $(JARS)/kafka.jsa $(VENV)/spark.jsa ## download Apache Kafka, Spark's own connector and a schema registry, once (needs Java)

$(JARS)/.up-to-date: conf/kafka/ivy.xml conf/kafka/jars.sha256 conf/kafka/versions/ivy.xml conf/kafka/versions/jars.sha256 \
		integration/support/artifacts.py | setup
	$(BIN)/python -m integration.support.artifacts $(JARS)
	$(BIN)/python -m integration.support.kafka_versions
	touch $@

# If a class archive cannot be written, JVMs start without it, which takes longer.
$(JARS)/kafka.jsa: $(JARS)/.up-to-date $(VENV)/.up-to-date tests/runner/class_archive.py
	$(BIN)/python -m tests.runner.class_archive kafka

%/spark.jsa: %/.up-to-date tests/runner/class_archive.py
	PYSPARK_PYTHON=$(CURDIR)/$*/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/$*/bin/python \
		$*/bin/python -m tests.runner.class_archive spark

# Keep bytecode files even if the environment disables them. Otherwise, every process recompiles everything in each run,
# and a Spark job has a dozen processes.
export PYTHONDONTWRITEBYTECODE :=

# Spark listens on the loopback interface only.
export SPARK_LOCAL_IP := 127.0.0.1

.PHONY: check
check: setup ## check format, lint, types, layers and sizes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.sizes

.PHONY: format
format: setup ## reformat the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One process per core, but at most four, because each process first collects all tests, which takes seconds. The tests
# of a file run in one process, so they share its fixtures.
UNIT_TESTS := pytest tests --ignore tests/spark --numprocesses auto --maxprocesses 4 --dist loadfile

# Runs PARTS parts concurrently (by default, one more than there are cores): see tests/runner/parts.py.
.PHONY: test
test: setup ## run all tests: unit, Spark (each version), real Kafka
	$(BIN)/python -m tests.runner.parts

# Tests with the marker `data_source` need features that Spark 3 lacks.
SPARK_PYTEST = PYSPARK_PYTHON=$(CURDIR)/.venv-pyspark-$(1)/bin/python PYSPARK_DRIVER_PYTHON=$(CURDIR)/.venv-pyspark-$(1)/bin/python \
	.venv-pyspark-$(1)/bin/python -m pytest $(if $(filter 3.%,$(1)),-m "not data_source")

test-pyspark-%: .venv-pyspark-%/.up-to-date ## run the smoke suite on one pyspark version (with Python 3.10 if it is installed); `make soak` runs all tests
	$(call SPARK_PYTEST,$*) @tests/spark/smoke_tests.txt --junit-xml $(MATRIX)/$*.xml

.PHONY: spark-matrix
spark-matrix: kafka $(ALL_SPARKS:%=test-pyspark-%) $(SAIL)/.up-to-date ## run the smoke suite on every Spark version, and write its table in docs/compatibility.md
	newest=$$($(BIN)/python -c 'import pyspark; print(pyspark.__version__)'); \
	$(BIN)/python -m pytest @tests/spark/smoke_tests.txt --junit-xml $(MATRIX)/$$newest.xml
	$(BIN)/python -m pytest integration/test_sail.py --junit-xml $(MATRIX)/sail.xml
	$(BIN)/python -m tools.spark_matrix $(MATRIX)

# Except for pyspark, these environments have the packages of .venv. If they have the same version of Python, they
# import the packages from .venv.
.venv-pyspark-%/.up-to-date: pyproject.toml $(VENV)/.up-to-date
	test -x $(@D)/bin/python || $(OLDEST_PYTHON) -m venv $(@D)
	$(@D)/bin/python -m $(INSTALL) 'pyspark==$*'
	packages=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	shared=$(CURDIR)/$(VENV)/lib/$$(basename $$(dirname $$packages))/site-packages; \
	if [ -d $$shared ]; then echo "import site; site.addsitedir('$$shared')" > $$packages/shared.pth; \
	else $(@D)/bin/python -m $(INSTALL) --editable '.[dev-spark]' 'pyspark==$*'; fi
	touch $@

# The lowest versions are read from pyproject.toml, so that the declared versions are the tested ones. Two extras are
# not listed: spark, whose version is set below, and gssapi, which needs a compiler and Kerberos' headers.
MINIMUM_EXTRAS := cli\|prometheus\|opentelemetry\|openlineage\|oauth\|protobuf
.PHONY: test-minimums
test-minimums: $(MINIMUMS)/.up-to-date ## run the unit tests on the lowest versions that pyproject.toml allows
	$(MINIMUMS)/bin/python -m $(UNIT_TESTS)

$(MINIMUMS)/.up-to-date: pyproject.toml
	test -x $(MINIMUMS)/bin/python || $(OLDEST_PYTHON) -m venv $(MINIMUMS)
	$(MINIMUMS)/bin/python -m pip install --quiet --upgrade pip
	$(MINIMUMS)/bin/python -m pip install --quiet --editable '.[dev]' 'pyspark==$(firstword $(SPARKS))' \
		$$(sed -n '/^dependencies = \[/,/^\]/p; /^\($(MINIMUM_EXTRAS)\) = /p' pyproject.toml | grep -o '"[^">]*>=[^",]*' | sed 's/"//; s/>=/==/')
	touch $@

.PHONY: test-prepare-pyspark
test-prepare-pyspark: $(SPARK_VENVS)
	@if command -v java >/dev/null; then $(MAKE) --no-print-directory $(SPARK_ARCHIVES); fi

# Sail, and the version of Spark's client that it supports. All other packages are imported from .venv.
$(SAIL)/.up-to-date: $(VENV)/.up-to-date
	test -x $(SAIL)/bin/python || $(BIN)/python -m venv $(SAIL)
	$(SAIL)/bin/python -m $(INSTALL) --no-deps 'pysail==0.7.2' 'pyspark-client==4.1.3'
	shared=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$shared')" > $$($(SAIL)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
	touch $@

# Without Java, nothing is downloaded: the tests that need it are skipped with that reason.
.PHONY: test-prepare
test-prepare: setup $(SAIL)/.up-to-date
	@if command -v java >/dev/null; then $(MAKE) --no-print-directory kafka; fi

.PHONY: test-unit
test-unit: setup ## run the unit tests, without a JVM or network; takes less than three minutes on two cores
	$(BIN)/python -m $(UNIT_TESTS)

.PHONY: fuzz
fuzz: setup ## pass malformed bytes to every decoder: make fuzz N=1000000
	$(BIN)/python -m tests.fuzz $(N)

.PHONY: soak
soak: setup kafka $(ALL_SPARK_VENVS) ## run the explorers, the fuzzer, the fault scenarios and all slow tests for hours; skips the stages that have passed
	$(BIN)/python -m tests.runner.soak $(ALL_SPARKS)

test-whole-pyspark-%: .venv-pyspark-%/.up-to-date
	SOAK=1 $(call SPARK_PYTEST,$*) tests/spark --ignore tests/spark/scenarios/test_examples.py --ignore tests/spark/scenarios/test_documented_examples.py

.PHONY: demo
demo: setup ## write a million rows and a stream from Spark to a broker, and read them back (BOOTSTRAP=host:port for your own broker)
	$(BIN)/python -m spark_kafka_sink demo $(if $(BOOTSTRAP),--bootstrap-server $(BOOTSTRAP)) $(if $(ROWS),--rows $(ROWS))

.PHONY: bench
bench: setup kafka ## run all benchmarks, and write docs/benchmarks.md and the README; QUICK=1 only prints the results of a few rounds
	$(BIN)/python -m integration.benchmarks $(if $(QUICK),--quick)

.PHONY: docs
docs: setup docs/assets/mermaid.min.js ## generate the tables from the code, check links and names, and build the site into docs/site/
	$(BIN)/python -m tools.error_document
	$(BIN)/python -m tools.options_document
	$(BIN)/python -m tools.flags_document
	$(BIN)/python -m tools.typed_options_source
	$(BIN)/python -m pytest -q tests/test_documents.py tests/test_commands_in_documents.py tests/test_site.py
	$(BIN)/python -m zensical build --clean --strict --config-file docs/zensical.toml

.PHONY: publish-docs
publish-docs: docs ## build the site as one of several versions, with links to edit pages: FOLDER=... REPOSITORY=https://...
	$(BIN)/python -m tools.publish_site $(FOLDER) $(REPOSITORY)

# Bundle Mermaid's script with the pages, so that the site loads nothing from other servers.
MERMAID := 12.3.0
docs/assets/mermaid.min.js:
	@if command -v npm >/dev/null; then \
		mkdir -p build/mermaid && cd build/mermaid && npm pack --silent mermaid@$(MERMAID) >/dev/null && \
		tar xzf mermaid-$(MERMAID).tgz package/dist/mermaid.min.js && mv package/dist/mermaid.min.js $(CURDIR)/$@; \
	else echo "npm is not installed: the site will load Mermaid's script from unpkg.com"; fi

# A separate environment with the tools for a release, without the project's packages.
$(BUILD)/.up-to-date: Makefile
	test -x $(BUILD)/bin/python || $(PYTHON) -m venv $(BUILD)
	$(BUILD)/bin/python -m pip install --quiet --upgrade pip build twine cyclonedx-bom
	touch $@

# The bill of materials lists the packages that pip installs with the wheel today. It does not list pip itself.
.PHONY: build
build: $(BUILD)/.up-to-date ## build and check the wheel, with its bill of materials, and the source archive, in dist/; does not need .venv
	rm -rf dist build
	$(BUILD)/bin/python -m build --quiet --outdir dist .
	mkdir -p build
	$(PYTHON) -m venv --clear --without-pip build/installed
	$(BUILD)/bin/python -m pip --python build/installed/bin/python install --quiet dist/*.whl
	$(BUILD)/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom.cdx.json build/installed/bin/python
	$(BUILD)/bin/python -m tools.wheel_sbom build/sbom.cdx.json dist/*.whl
	$(BUILD)/bin/python -m twine check --strict dist/*

.PHONY: clean
clean: ## remove builds and caches (keeps .venv and .jars)
	rm -rf build dist docs/site docs/.cache *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse metastore_db derby.log artifacts
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
