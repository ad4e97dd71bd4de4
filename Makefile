PYTHON ?= python3
PYTHON_NEWEST ?= python3.12
VENV ?= .venv
JAX ?= jax
ISA ?= AVX2 AVX512_CORE DEFAULT

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test sweep bench lint docs config test-versions clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: $(VENV)/.test
	$(BIN)/python -m pytest -q $(ARGS)

# 20,000 random problems for each instruction set that oneDNN treats differently, each in its own process.
sweep: $(VENV)/.test
	for isa in $(ISA); do \
	  ONEDNN_MAX_CPU_ISA=$$isa $(BIN)/python -m pytest -q -m sweep --hypothesis-profile=sweep $(ARGS) || exit 1; \
	done

bench: $(VENV)/.built
	$(BIN)/python benchmarks/bench_conv.py $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $$(find csrc -name '*.cc' -o -name '*.h')

docs: $(VENV)/.docs
	$(BIN)/sphinx-build -q -W -n --keep-going docs docs/_build

# What is compiled, loaded and supported; an error where the native backend does not load.
config: $(VENV)/.built
	$(BIN)/python -W error::RuntimeWarning -m jax_cudnn_conv

# The oldest jax, the last for Python 3.11, and the newest, which needs Python 3.12 or later.
test-versions:
	$(MAKE) test VENV=.venv-jax0.7.2 JAX=jax==0.7.2
	$(MAKE) test VENV=.venv-jax0.10.2 JAX=jax==0.10.2
	$(MAKE) test VENV=.venv-newest PYTHON=$(PYTHON_NEWEST)

clean:
	rm -rf .venv .venv-* build docs/_build

# The package, editable: Python files take effect as they are saved, C++ when this rule runs again.
$(VENV)/.built: pyproject.toml CMakeLists.txt $(shell find csrc -type f)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e . '$(JAX)'
	touch $@

# What an extra adds. The package is there by now, so pip does not build it again.
$(VENV)/.%: $(VENV)/.built
	$(BIN)/pip install -q 'jax-cudnn-conv[$*]' '$(JAX)'
	touch $@
