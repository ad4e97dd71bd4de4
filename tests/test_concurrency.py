"""Threads, devices, processes, and the bounded cache of prepared kernels."""

import os
import re
import threading

import harness
import jax
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc

TWO = ("g2_n2i4o6_h7k3s2p1_w9k2p1,0", "n1i16o33_w40k5p2")


def in_threads(count, function):
    """Run `function` in several threads at once; raise what any of them raised."""
    errors = []

    def run():
        try:
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)

    start = threading.Barrier(count)
    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_c31_eight_threads_are_bit_equal_to_one(backend, rng):
    """200 calls of all functions on two shapes from each of eight threads, on numbers whose sums round."""
    with jcc.options(backend=backend):
        cases = []
        for name in harness.ROLES:
            for problem in map(problems.parse, TWO):
                operands = [
                    rng.normal(size=a.shape).astype(np.float32) for a in harness.operands(name, problem)
                ]
                program = jax.jit(harness.function(name, problem)).lower(*operands).compile()
                cases.append((program, operands, np.asarray(program(*operands))))

    def calls():
        for i in range(200):
            program, operands, expected = cases[i % len(cases)]
            harness.assert_equal(program(*operands), expected)

    in_threads(8, calls)


@pytest.fixture
def capacity(onednn):
    """Sets the capacity of the plan cache for one test."""
    before = onednn.plan_cache_info()["capacity"]
    yield onednn.set_plan_cache_capacity
    onednn.set_plan_cache_capacity(before)


def test_c31_threads_that_prepare_the_same_kernel(capacity):
    """Tracing, compiling and preparing a new problem in eight threads at once, with room for one plan."""
    capacity(1)
    for length in range(50, 54):
        problem = problems.parse(f"n2i3o5_w{length}k3s2p1")
        in_threads(8, lambda problem=problem: harness.check_every_function(problem))


@pytest.mark.parametrize("size", [0, 1, 2])
def test_c30_values_do_not_depend_on_the_capacity(size, capacity, onednn):
    capacity(size)
    for _ in range(2):
        for text in problems.FEW[:3]:
            harness.check_every_function(problems.parse(text))
    assert onednn.plan_cache_info()["size"] <= size


def test_c30_equal_calls_hit_the_cache(capacity, onednn):
    capacity(16)
    problem = problems.parse("n2i3o5_w49k3s2p1")
    operands = harness.operands("conv", problem)
    f = jax.jit(harness.function("conv", problem))
    f(*operands)
    before = onednn.plan_cache_info()
    for _ in range(20):
        f(*operands).block_until_ready()
    after = onednn.plan_cache_info()
    assert after["misses"] == before["misses"]
    assert after["hits"] >= before["hits"] + 20


def test_c30_memory_is_flat_once_the_cache_is_full(native_missing):
    if native_missing:
        pytest.skip(native_missing)
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("reads the resident memory from /proc")
    harness.python("child.py", "memory", MALLOC_ARENA_MAX="1")  # one heap, whose size does not depend on luck


def test_c31_four_devices():
    """shard_map with and without its check of varying axes, pmap, and jit of a sharded array."""
    harness.python("child.py", "devices")


@pytest.mark.parametrize(
    ("when", "wanted"), [("before", "right"), ("old", "right|fork"), ("new", "fork|right")]
)
def test_c32_forked_child(when, wanted):
    """Forked before JAX runs, it works; after that, it works or says why it cannot. It never hangs."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this platform")
    assert re.search(wanted, harness.python("-W", "ignore", "child.py", "fork", when, timeout=120))


def threads_used(**environment):
    return int(
        re.search(r"'threads': (\d+)", harness.python("child.py", "values", *problems.FEW, **environment))[1]
    )


def test_c32_one_setting_limits_the_threads(native_missing):
    """JAX_CUDNN_CONV_NUM_THREADS, with the same values."""
    if native_missing:
        pytest.skip(native_missing)
    assert threads_used(JAX_CUDNN_CONV_NUM_THREADS="1") == 1


def test_c32_the_affinity_mask_limits_the_threads(native_missing):
    """A thread for each core that the process may use; OMP_NUM_THREADS is not read."""
    if native_missing:
        pytest.skip(native_missing)
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity masks on this platform")
    cores = os.sched_getaffinity(0)
    assert threads_used(OMP_NUM_THREADS="1") == len(cores)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert threads_used() == 1
    finally:
        os.sched_setaffinity(0, cores)
