# make demo | test | lint | site | bench | chaos: each makes .venv when it is missing or out of date, and works from there.
# make test-oldest: the same with .venv-oldest, which has the oldest versions that pyproject.toml allows.
.PHONY: demo test test-slow test-compiled test-oldest test-oldest-compiled test-oldest-plain lint site bench chaos
SHELL := /bin/bash

# An activated environment or a PYTHONPATH of the caller must not leak into .venv.
unexport VIRTUAL_ENV
unexport PYTHONPATH
unexport PYTHONHOME
# Without bytecode on disk, each of the many processes of the tests compiles the package and the tests again.
unexport PYTHONDONTWRITEBYTECODE

demo: .venv/.made
	.venv/bin/vision-attn demo

test: .venv/.made
	.venv/bin/python -m pytest --workers=auto --durations=10

# Tests that take long and seldom fail when the others pass: mypy on the package, the installed wheel, every row of
# `reproduce`, the day of a GPU, every config captured and resumed, networks of other libraries, notebooks, browsers. Without
# shape checks, as users run it all, which takes four fifths of the time.
test-slow: .venv/.made
	VISION_ATTN_SHAPES=0 .venv/bin/python -m pytest -m slow --workers=auto --durations=10

# What is compiled, which does not mix with shape checks.
test-compiled: .venv/.made
	VISION_ATTN_SHAPES=0 .venv/bin/python -m pytest -m compile

# What versions can break: what is compiled, and the rest, without shape checks, which only tests use.
test-oldest: test-oldest-compiled test-oldest-plain

# numba keeps compiled loops in files of one name for all of its versions: in one folder, two environments would compile
# them again and again, each overwriting what the other needs.
test-oldest-compiled test-oldest-plain: export NUMBA_CACHE_DIR = $(CURDIR)/.venv-oldest/numba

test-oldest-compiled: .venv-oldest/.made
	VISION_ATTN_SHAPES=0 .venv-oldest/bin/python -m pytest -m compile

test-oldest-plain: .venv-oldest/.made
	VISION_ATTN_SHAPES=0 .venv-oldest/bin/python -m pytest $(OLDEST)

OLDEST := tests/test_contracts.py tests/fast/test_autograd_functions.py tests/configuration/test_moves.py \
	tests/engine/test_checkpoint.py tests/engine/test_resume.py tests/export tests/decode \
	tests/web/test_addresses.py tests/web/test_connections.py tests/data/test_film_files.py tests/viz/test_figures.py

lint: .venv/.made
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

chaos: .venv/.made
	VISION_ATTN_SHAPES=0 .venv/bin/python -m pytest -m chaos

site: .venv/.made
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .venv/bin/mkdocs build --strict

bench: .venv/.made
	.venv/bin/python -m benchmarks

.venv/.made: pyproject.toml constraints.txt
	.ci/venv

.venv-oldest/.made: pyproject.toml constraints-oldest.txt
	.ci/venv .venv-oldest constraints-oldest.txt
