# Needs Python 3.11 or newer, make, and the network for packages. `make` alone says what there is.

USABLE := import pip, sys; sys.exit(sys.version_info < (3, 11))

# The first Python that is new enough; `make PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
PORT ?= 8000
# Tests often wait: five processes keep two cores busy. PROCESSES=0 is this process alone, for a debugger.
PROCESSES ?= 5

VENV := .venv
BIN := $(VENV)/bin
# One virtual environment, two stamps: what `make run` needs, and the test and development tools on top of it.
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
LOCK_VENV := .venv-lock
LATEST_VENV := .venv-latest

# A virtual environment does not survive being moved or copied, nor the removal of its Python: the stamp says where it
# was made, and counts only while there is a Python in it.
ifneq ($(shell test -x $(BIN)/python && cat $(RUN_STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(RUN_STAMP)
endif

PIP := $(BIN)/python -m pip install --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install run test test-latest coverage soak chaos fuzz screenshots recording docs docs-serve check generate bench bench-full lock clean

help: ## say what there is
	@echo "make run       set up $(VENV) with what running needs, then start the gateway with the sample project (PORT=$(PORT))"
	@echo "make install   set up $(VENV) from the lock, with the test and development tools"
	@echo "make test      install, then run all tests (PROCESSES=$(PROCESSES); ARGS='tests/unit -x')"
	@echo "make test-latest  run all tests in $(LATEST_VENV), with the newest versions that pyproject.toml allows (ARGS as above)"
	@echo "make coverage  install, then run all tests and report which statements of src/ they cover (ARGS as above)"
	@echo "make soak      install, then run the load tests of Celery with more tasks (SOAK_TASKS=10000)"
	@echo "make chaos     install, then break everything again and again (CHAOS_MINUTES=10, CHAOS_SEED)"
	@echo "make fuzz      install, then send the gateway whatever its OpenAPI allows or forbids (FUZZ_EXAMPLES=300), and run the models long"
	@echo "make screenshots  install, then take the pictures of the docs anew, of the running sample project"
	@echo "make recording  install, then record the moving picture of the README from the running sample project"
	@echo "make docs      install, then build the documentation site in site/; make docs-serve serves it while you write"
	@echo "make check     install, then ruff, mypy --strict and import-linter"
	@echo "make bench     install, then measure ours and the peers side by side (10 minutes or less; ARGS=--help)"
	@echo "make bench-full  the same with more of everything, for hours"
	@echo "make generate  install, then write the synchronous client from the asynchronous one"
	@echo "make lock      write requirements/*.txt anew, with the newest versions"
	@echo "make clean     remove $(VENV), caches and the sample's data"

install: $(DEV_STAMP)

$(RUN_STAMP): requirements/server.txt requirements/build.txt pyproject.toml
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Fairlead needs Python 3.11 or newer; say where it is: make run PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "this Python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@made="$$(cat $(RUN_STAMP) 2>/dev/null)"; \
	if [ -n "$$made" ] && [ "$$made" != "$(CURDIR)" ] || ! $(BIN)/python -c '$(USABLE)' 2>/dev/null; then \
		echo "making $(VENV)"; "$(PYTHON)" -m venv --clear $(VENV); fi
	$(PIP) --require-hashes -r requirements/server.txt -r requirements/build.txt
	$(PIP) --quiet --no-deps --no-build-isolation -e .
	@printf '%s' '$(CURDIR)' > $(RUN_STAMP)

$(DEV_STAMP): $(RUN_STAMP) requirements/dev.txt
	$(PIP) --require-hashes -r requirements/dev.txt
	@touch $(DEV_STAMP)

# No shell between make and Python, or a signal to make would end the shell and leave the gateway running: a plain
# command, with what it needs in the environment.
run: export PORT := $(PORT)
run: $(RUN_STAMP)
	@$(BIN)/python examples/cao/run.py

# Otherwise each of the many processes that the tests start would compile src/ and tests/ again.
test coverage: export PYTHONDONTWRITEBYTECODE :=

# The files of tests are in memory if there is room: thousands of databases then need no disk.
ifeq ($(TMPDIR)$(shell test -w /dev/shm && df -Pk /dev/shm | awk 'NR == 2 { print ($$4 > 8000000) }'),1)
test coverage: export TMPDIR := /dev/shm
endif

test: install
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(ARGS)

# Tests against the newest versions that pyproject.toml allows, whatever is locked.
test-latest:
	"$(PYTHON)" -m venv $(LATEST_VENV)
	$(LATEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(LATEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		-e '.[server,client,redis,celery,postgres,artifacts]' --group dev -r requirements/build.in
	$(LATEST_VENV)/bin/python -m pytest -n $(PROCESSES) --dist worksteal $(ARGS)

# Every Python process that the tests start is measured too (`patch` in pyproject.toml).
coverage: install
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(PROCESSES) --dist worksteal $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

soak: export SOAK_TASKS ?= 10000
soak: install
	$(BIN)/python -m pytest tests/balancing/test_storm.py tests/balancing/test_producers.py $(ARGS)

chaos: install
	$(BIN)/python -m tests.chaos.soak

fuzz: export FUZZ_EXAMPLES ?= 300
fuzz: install
	$(BIN)/python -m pytest -n 2 --hypothesis-profile fuzz tests/integration/test_schemathesis.py tests/model \
		tests/contract/store/test_store_model.py tests/unit $(ARGS)

recording: install
	$(BIN)/python -m tools.record_dashboard

screenshots: install
	$(BIN)/python -m tests.browser.screenshots

# Material for MkDocs prints an announcement of its successor unless this is set.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: install
	$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

docs-serve: install
	$(BIN)/mkdocs serve

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m bench $(ARGS)

bench-full: install
	$(BIN)/python -m bench --full $(ARGS)

# `make lock UPGRADE=` keeps every version that is locked already, and adds what is new in pyproject.toml.
UPGRADE ?= --upgrade

# The lock names no index, so that it works with a mirror; its hashes say what may come from there.
LOCK = $(LOCK_VENV)/bin/uv pip compile --quiet $(UPGRADE) --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header

EXTRAS = --extra server --extra postgres --extra redis --extra celery --extra artifacts

generate: install
	$(BIN)/python -m tools.generate_sync_client

lock:
	"$(PYTHON)" -m venv --clear $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOCK) $(EXTRAS) --group dev pyproject.toml requirements/build.in -o requirements/dev.txt
	$(LOCK) $(EXTRAS) --constraint requirements/dev.txt pyproject.toml -o requirements/server.txt
	$(LOCK) --constraint requirements/dev.txt requirements/build.in -o requirements/build.txt

clean:
	rm -rf $(VENV) $(LOCK_VENV) $(LATEST_VENV) .coverage* data dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
