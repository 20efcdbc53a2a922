# Every target works as the first command on a fresh clone: it calls `setup` by itself.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.up-to-date

.PHONY: setup test lint bench chaos demo docs dist clean
.DEFAULT_GOAL := test

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "advdrop needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version`. Try: make PYTHON=python3.11"; exit 1; }
	@echo "Setting up .venv (a few minutes the first time: torch is large) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --quiet \
	  --constraint constraints.txt --editable '.[train,sklearn,export,serve,transformers,tensorboard,examples,docs,dev]'
	@touch $@

test: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/step.py --memory --json results/step.json
	$(BIN)/python benchmarks/search.py --json results/search.json
	$(BIN)/python benchmarks/depth.py --json results/depth.json
	$(BIN)/python benchmarks/engine.py --json results/engine.json
	$(BIN)/python benchmarks/scaling.py --json results/scaling.json
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/search_quality.py

chaos: setup
	$(BIN)/python benchmarks/chaos.py --json results/chaos.json
	$(BIN)/python benchmarks/page.py

demo: setup
	$(BIN)/advdrop compare --methods dropout,pi,no-flips,vadd-qe --labels 100 --seeds 3 --updates 250 --out runs/demo

docs: setup
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "the pages are in docs/_build/html/index.html"

dist: setup
	$(BIN)/python -m build --no-isolation --outdir dist

clean:
	rm -rf .venv build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
