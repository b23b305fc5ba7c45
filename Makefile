# One environment, .venv, serves every target. It needs Python 3.11 or later and nothing else:
# `make PYTHON=python3.12 test` picks another interpreter, and `UV_TORCH_BACKEND=cpu make setup`
# fetches the build of torch without CUDA, a far smaller download.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Tests of functions, of seconds in all: they start hardly a process, train hardly a network, and open no browser.
QUICK := tests/clustering tests/config tests/runs tests/test_layers.py tests/test_derive.py tests/test_statistics.py \
  $(addprefix tests/data/test_, augment.py checksums.py decode.py folders.py frame.py incomplete.py labels.py lists.py \
    mirrored.py named.py outcome.py patterns.py shrink.py sources.py strokes.py tar.py tar_index.py views.py) \
  $(addprefix tests/methods/test_, generative_losses.py heads.py losses.py losses_gradients.py own_settings.py \
    peer_losses.py) \
  $(addprefix tests/training/test_, record.py row_views.py schedule.py) \
  tests/nn/test_backbones.py tests/nn/test_draws.py tests/cli/test_cli_help.py tests/paper/test_reproduce_published.py

# Idle OpenMP threads sleep instead of spinning, which would take the cores from the other processes.
quick test oldest stress attack bench: export OMP_WAIT_POLICY = passive

# The tests start many processes: the bytecode that the first one compiles serves the others, even in a shell that
# asks for none to be kept.
quick test oldest stress: export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup browser pages demo quick test oldest stress site dist attack licences audit lint lint-js bench clean
.DEFAULT_GOAL := help

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## install everything into .venv; costs nothing when pyproject.toml has not changed

demo: $(READY) ## cluster 1,797 handwritten digits and compare with classic methods
	$(BIN)/twincluster demo

quick: $(READY) ## unit tests, under a minute on two cores
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(QUICK)

test: lint browser ## lint, types and tests: what a change must pass
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

oldest: browser ## the tests with the oldest packages that pyproject.toml allows, in an environment of their own
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet uv
	.venv-oldest/bin/uv pip install --python .venv-oldest/bin/python --resolution lowest-direct -e '.[dev]'
	.venv-oldest/bin/python -m pytest -q -n 2 --dist worksteal

stress: $(READY) ## tests of minutes: whether each method learns
	$(BIN)/python -m pytest -q -n 2 -m stress

# The page of a report is tried in a real browser, Debian's own; without one its tests are skipped.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "no Chromium, and it could not be installed: the page of a report will not be tested"

lint: $(READY) lint-js ## ruff, mypy and the check of the JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Where there is no npm, or where it cannot fetch, this check is left out; TWINCLUSTER_NPM=required makes that a failure.
lint-js: ## ESLint and the type checker on the JavaScript of the pages, where npm is installed
	@command -v npm >/dev/null || { echo "no npm: the JavaScript of the pages is not checked"; test "$$TWINCLUSTER_NPM" != required; exit; }; \
	test tools/node_modules/.ready -nt tools/package-lock.json \
	  || { npm ci --prefix tools --silent --no-audit --no-fund && touch tools/node_modules/.ready; } \
	  || { echo "npm ci fails: the JavaScript of the pages is not checked"; test "$$TWINCLUSTER_NPM" != required; exit; }; \
	cd tools && npm run --silent lint

pages: ## join the JavaScript of the report and of the explorer into src/twincluster/pages/web/built
	$(PYTHON) tools/bundle_pages.py

site: $(READY) ## build the documentation into site/; warnings are errors, links are checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

dist: $(READY) ## build and check the packages in dist/
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

attack: $(READY) ## attack files, processes and the explorer for hours: make attack SEED=3 SCALE=0.1 NAMES="kills pairs"
	$(BIN)/python -m attacks $(NAMES) --seed $(or $(SEED),0) --scale $(or $(SCALE),1)

licences: $(READY) ## check the licences of all dependencies, and list them in docs/licences.md
	$(BIN)/python tools/licences.py --write

# Says nothing of packages that it cannot look up; --strict makes that a failure.
audit: $(READY) ## look for known vulnerabilities of all dependencies; needs the network
	$(BIN)/uv tool run pip-audit --strict --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

bench: $(READY) ## measure speed and memory on this machine; the last table takes a quarter of an hour
	$(BIN)/python -m benchmarks startup
	$(BIN)/python -m benchmarks augment
	$(BIN)/python -m benchmarks train --device cpu --set train.backbone=small --set train.batch_size=128
	$(BIN)/python -m benchmarks report
	$(BIN)/python -m benchmarks memory

clean: ## remove .venv, caches and built packages; runs and data stay
	rm -rf .venv .venv-oldest tools/node_modules dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# uv is quick but does not read pip's settings: where it is not to be had or cannot reach its packages, pip does
# the same work.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	{ $(BIN)/python -m pip install --quiet uv && $(BIN)/uv pip install --python $(BIN)/python -e '.[dev]'; } \
	  || $(BIN)/python -m pip install -e '.[dev]'
	@touch $@
