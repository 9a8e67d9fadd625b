# make demo   set up, index the sample folder, search it, ask it
# make test   set up for development, run the tests (not those marked slow)
#
# PYTHON       the interpreter to build the environment with (3.11 or newer)
# TORCH_INDEX  pip options for torch alone, e.g. the CPU build on Linux:
#              make demo TORCH_INDEX="--index-url https://download.pytorch.org/whl/cpu"
# EXTRA        cpu (faiss-cpu) or gpu (faiss-gpu); never both in one environment

PYTHON ?= python3
VENV ?= .venv
EXTRA ?= cpu
TORCH_INDEX ?=
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check
CORE = $(VENV)/.stamp-core-$(EXTRA)
DEV = $(VENV)/.stamp-dev-$(EXTRA)
MODELS = $(VENV)/.stamp-models

# a path entry of '' would let this folder's `kernels` and `index` shadow other packages
export PYTHONSAFEPATH = 1
export HF_HUB_OFFLINE = 1

.PHONY: demo test test-fast test-slow lint types bench reference wheel clean

demo: $(CORE) $(MODELS)
	$(BIN)/foveate demo

test: $(DEV) $(MODELS)
	$(BIN)/pytest -q -m "not slow and not bench"

test-fast: $(DEV)
	$(BIN)/pytest -q -m "not slow and not bench and not models"

test-slow: $(DEV) $(MODELS)
	$(BIN)/pytest -q -m slow --timeout 3600

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	mkdir -p .typing && ln -sfn .. .typing/foveate
	$(BIN)/mypy

# make bench OP=NAME ARGS="..." runs tests/bench/NAME.py
bench: $(DEV) $(MODELS)
	@test -n "$(OP)" || { echo "name one: make bench OP=NAME, of" >&2; \
	  ls tests/bench | sed -n 's/\.py$$//p' >&2; exit 2; }
	$(BIN)/python tests/bench/$(OP).py $(ARGS)

# every public class and function, as HTML, from the docstrings
reference: $(DEV)
	$(BIN)/python -P -m pdoc -d google -o build/reference foveate.pipeline.engine \
	  foveate.pipeline.types foveate.pipeline.protocols foveate.pipeline.config \
	  foveate.pipeline.errors foveate.pipeline.langchain foveate.pipeline.serve.options \
	  foveate.pipeline.serve.run

wheel: $(DEV)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist .typing

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "foveate needs Python 3.11 or newer; '$(PYTHON)' is" \
	    "$$($(PYTHON) --version 2>&1 || true). Name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(CORE): pyproject.toml | $(VENV)/bin/python
	@echo "installing (several minutes the first time; torch is most of it) ..."
	$(if $(TORCH_INDEX),$(PIP) install -qq $(TORCH_INDEX) torch torchvision)
	$(PIP) install -qq --editable '.[$(EXTRA)]'
	@touch $@

$(DEV): $(CORE)
	$(PIP) install -qq --editable '.[$(EXTRA),dev]'
	@touch $@

$(MODELS): pipeline/models.txt $(CORE)
	$(BIN)/foveate models install
	@touch $@
