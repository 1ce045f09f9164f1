# make demo | test | lint | bench | chaos: each makes .venv when it is missing or out of date, and works from there.
.PHONY: demo test lint bench chaos
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
	.venv/bin/python -m pytest --numprocesses=auto --dist=loadfile --no-loadscope-reorder --durations=10

lint: .venv/.made
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

chaos: .venv/.made
	VISION_ATTN_SHAPES=0 .venv/bin/python -m pytest -m chaos

bench: .venv/.made
	.venv/bin/python -m benchmarks

.venv/.made: pyproject.toml constraints.txt
	.ci/venv
