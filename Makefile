# Needs Python 3.11 or newer, make, and the network for packages. `make` alone says what there is.

USABLE := import pip, sys; sys.exit(sys.version_info < (3, 11))

# The first Python that is new enough; `make PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
PORT ?= 8000
# Tests mostly wait: three processes keep two cores busy. PROCESSES=0 is this process alone, for a debugger.
PROCESSES ?= 3

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK_VENV := .venv-lock

# A virtual environment does not survive being moved or copied, nor the removal of its Python: the stamp says where it
# was made, and counts only while there is a Python in it.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.DEFAULT_GOAL := help
.PHONY: help install run test chaos fuzz screenshots check bench bench-full lock clean

help: ## say what there is
	@echo "make install   set up $(VENV) from the lock"
	@echo "make run       install, then start the gateway with the sample project (PORT=$(PORT))"
	@echo "make test      install, then run all tests (PROCESSES=$(PROCESSES); ARGS='tests/unit -x')"
	@echo "make chaos     install, then break everything again and again (CHAOS_MINUTES=10, CHAOS_SEED)"
	@echo "make fuzz      install, then send the gateway whatever its OpenAPI allows or forbids (FUZZ_EXAMPLES=300)"
	@echo "make screenshots  install, then take the pictures of the docs anew, of the running sample project"
	@echo "make check     install, then ruff, mypy --strict and import-linter"
	@echo "make bench     install, then measure ours and the peers side by side (10 minutes or less; ARGS=--help)"
	@echo "make bench-full  the same with more of everything, for hours"
	@echo "make lock      write requirements/*.txt anew, with the newest versions"
	@echo "make clean     remove $(VENV), caches and the sample's data"

install: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml
	@test -n "$(PYTHON)" && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Fairlead needs Python 3.11 or newer; say where it is: make install PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "this Python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@made="$$(cat $(STAMP) 2>/dev/null)"; \
	if [ -n "$$made" ] && [ "$$made" != "$(CURDIR)" ] || ! $(BIN)/python -c '$(USABLE)' 2>/dev/null; then \
		echo "making $(VENV)"; "$(PYTHON)" -m venv --clear $(VENV); fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@printf '%s' '$(CURDIR)' > $(STAMP)

# No shell between make and Python, or a signal to make would end the shell and leave the gateway running: a plain
# command, with what it needs in the environment.
run: export PORT := $(PORT)
run: install
	@$(BIN)/python examples/cao/run.py

test: install
	$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(ARGS)

chaos: install
	$(BIN)/python -m tests.chaos.soak

fuzz: export FUZZ_EXAMPLES ?= 300
fuzz: install
	$(BIN)/python -m pytest -n 2 tests/integration/test_schemathesis.py $(ARGS)

screenshots: install
	$(BIN)/python -m tests.browser.screenshots

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/python -m bench $(ARGS)

bench-full: install
	$(BIN)/python -m bench --full $(ARGS)

# The lock names no index, so that it works with a mirror; its hashes say what may come from there.
LOCK = $(LOCK_VENV)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header

EXTRAS = --extra server --extra postgres --extra redis --extra celery

lock:
	"$(PYTHON)" -m venv --clear $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(LOCK) $(EXTRAS) --group dev pyproject.toml requirements/build.in -o requirements/dev.txt
	$(LOCK) $(EXTRAS) --constraint requirements/dev.txt pyproject.toml -o requirements/server.txt
	$(LOCK) --constraint requirements/dev.txt requirements/build.in -o requirements/build.txt

clean:
	rm -rf $(VENV) $(LOCK_VENV) data dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
