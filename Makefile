# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need first.
PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 4
TESTS   ?=
MINUTES ?= 60
SEED    ?= 0
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo demo-vllm test chaos check format clean docs
demo: $(STAMP)
	@$(BIN)/specd demo

demo-vllm: $(STAMP)
	@$(BIN)/python -m tests.vllm.demo

# Most tests wait for processes to start and stop, so there are more workers than cores; those that measure run alone. What
# failed on a busy machine runs once more, alone. One file: make test TESTS=tests/unit/x.py (status 5: it has none of a kind).
AGAIN = $(BIN)/python -m pytest --last-failed --last-failed-no-failures none --snapshot-warn-unused
test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not timing" $(TESTS) || [ $$? -eq 5 ] || \
	  { echo "What failed runs once more, alone:"; $(AGAIN) -m "not timing" $(TESTS); }
	$(BIN)/python -m pytest -m timing $(TESTS) || [ $$? -eq 5 ] || \
	  { echo "What failed runs once more:"; $(AGAIN) -m timing $(TESTS); }

# Random mishaps for a given time; a seed that did not hold plays again: make chaos MINUTES=0 SEED=n.
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python -m states.diagram > docs/states.md

$(STAMP): pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "specd needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@echo "Setting up $(VENV) (once; about half a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check -r requirements-dev.lock
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps -e .
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
