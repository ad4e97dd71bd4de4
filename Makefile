PYTHON ?= python3
PYTHON_NEWEST ?= python3.12
VENV ?= .venv
JAX ?= jax
ISA ?= AVX2 AVX512_CORE DEFAULT

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-cpu test-cudnn sweep sanitize bench lint docs config test-versions clean

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

test: test-cpu test-cudnn

test-cpu: $(VENV)/.test
	$(BIN)/python -m pytest -q $(ARGS)

# On real cuDNN and a test double of it: plans, values, errors, trials. No GPU is needed, nor used.
CUDNN_TESTS := $(wildcard tests/test_cudnn_*.py) tests/test_gpu.py tests/test_values.py tests/test_dtypes.py tests/test_layouts.py \
  tests/test_zero_extents.py
test-cudnn: $(VENV)/.test $(VENV)/.cudnn
	$(BIN)/python -m pytest -q --cudnn $(or $(ARGS),$(CUDNN_TESTS))

# The C++ code, and the tensors and workspaces of the double, under AddressSanitizer. Left out: what starts processes,
# and one test of trials, in which the double computes longer than it is told to wait.
ASAN := .venv-asan
sanitize:
	CMAKE_ARGS="-DCMAKE_CXX_FLAGS='-g -fno-omit-frame-pointer -fsanitize=address'" \
	  $(MAKE) $(ASAN)/.test $(ASAN)/.cudnn VENV=$(ASAN)
	for backend in "--cudnn --sanitize $(wildcard tests/test_cudnn_*.py)" ""; do \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	  ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH=$$(echo $(ASAN)/lib/python3*/site-packages/nvidia/cudnn/lib) \
	  $(ASAN)/bin/python -m pytest -q $$backend tests/test_values.py \
	    -k "not gives_up and not no_handle and not second_process and not writers and not limit_is_kept" || exit 1; \
	done

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

# cuDNN to plan with, 314 MB to download. Not an extra: pip would bring cuBLAS along, twice as much again, for which
# the tests have a stand-in.
$(VENV)/.cudnn: $(VENV)/.built
	$(BIN)/pip install -q --no-deps nvidia-cudnn-cu13==9.12.0.46 'nvidia-cuda-runtime==13.*' 'nvidia-cuda-crt==13.*'
	touch $@

# What an extra adds. The package is there by now, so pip does not build it again.
$(VENV)/.%: $(VENV)/.built
	$(BIN)/pip install -q 'jax-cudnn-conv[$*]' '$(JAX)'
	touch $@
