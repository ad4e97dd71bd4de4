"""What the tests share: the arrays of a problem, the library called on them, comparison, child processes."""

import functools
import os
import pathlib
import re
import subprocess
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import reference

import jax_cudnn_conv as jcc

TESTS = pathlib.Path(__file__).parent
FAST = {"xla_backend_optimization_level": 0}  # of what XLA compiles: for tests that it keeps waiting

# The library's functions: the roles of the two operands and of the result in one convolution y = conv(x, w).
ROLES = {
    "conv": "xwy",
    "conv_backward_data": "ywx",
    "conv_backward_filter": "xyw",
    "conv_transpose": "ywx",
}


def dtype_of(problem):
    return jnp.dtype(problems.DTYPES[problem.dtype])


def rounded(array, dtype):
    """An exact integer-valued result in `dtype`: rounded once to a narrower float, wrapped to an integer."""
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(array).astype(np.int64).astype(dtype)
    if jnp.dtype(dtype) == jnp.bfloat16:
        array = np.asarray(array).astype(np.float32)  # exact below 2**24
    return np.asarray(array).astype(dtype)


@functools.lru_cache(maxsize=256)
def arrays(problem, seed=0):
    """Random x, w and y of a problem, in its layout and dtype; y is not the convolution of x and w."""
    drawn = problems.data(problem, np.random.default_rng([seed, zlib.crc32(str(problem).encode())]))
    return {role: _place(problem, role, a) for role, a in zip("xwy", drawn, strict=True)}


def operands(name, problem, seed=0):
    """The two operands of the function called `name`."""
    return tuple(arrays(problem, seed)[role] for role in ROLES[name][:2])


def third(problem, result, **known):
    """The oracle's "x", "w" or "y" (`result`) from the other two, all in the problem's layout and dtype."""
    known = {
        role: reference.from_layout(role, np.asarray(a), problem.dimension_numbers)
        for role, a in known.items()
    }
    known = {role: a.astype(np.float32) if a.dtype == jnp.bfloat16 else a for role, a in known.items()}
    match result:
        case "y":
            out = reference.conv(known["x"], known["w"], *problem.geometry)
        case "x":
            out = reference.conv_dx(known["y"], known["w"], problem.extents, *problem.geometry)
        case "w":
            out = reference.conv_dw(known["x"], known["y"], problem.kernel, *problem.geometry)
    return _place(problem, result, out)


def oracle(name, problem, a, b):
    """What the function called `name` must return for the operands a and b."""
    first, second, result = ROLES[name]
    return third(problem, result, **{first: a, second: b})


def _place(problem, role, array):
    array = reference.to_layout(role, array, problem.dimension_numbers)
    return np.ascontiguousarray(rounded(array, dtype_of(problem)))


def keywords(name, problem):
    """The keyword arguments with which the function called `name` computes a problem."""
    kw = {
        "strides": problem.strides,
        "padding": problem.pads,
        "dilation": problem.dilation,
        "groups": problem.groups,
    }
    if problem.layout:
        kw["dimension_numbers"] = problem.layout[::-1] if name == "conv_transpose" else problem.layout
    if name == "conv_backward_data":
        kw["input_shape"] = arrays(problem)["x"].shape
    if name == "conv_backward_filter":
        kw["kernel_shape"] = arrays(problem)["w"].shape
    if name == "conv_transpose":
        kw["output_padding"] = problem.output_padding
    return kw


def function(name, problem, **more):
    """A library function with the geometry of a problem filled in: two operands to an array."""
    return functools.partial(getattr(jcc, name), **(keywords(name, problem) | more))


def check_every_function(problem, backend="auto", jit=True):
    """All of the library's functions on one problem against the oracle, exactly."""
    names = [name for name in ROLES if problem.transposable or name != "conv_transpose"]

    def call(arguments):
        return {name: function(name, problem)(*arguments[name]) for name in names}

    arguments = {name: operands(name, problem) for name in names}
    with jcc.options(backend=backend):
        results = (jax.jit(call) if jit else call)(arguments)
    for name in names:
        expected = oracle(name, problem, *arguments[name])
        assert_equal(results[name], expected, f"{name} ({backend}); {rerun(problem)}")


def count_primitives(function, *arguments):
    """How often each of the three primitives occurs in a function's jaxpr, inner ones included.

    A forward convolution with a bias or an activation counts as one without.
    """

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            yield equation.primitive.name
            for inner in jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")
            ):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from visit(inner)

    names = [n.replace("conv_fused", "conv_fwd") for n in visit(jax.make_jaxpr(function)(*arguments).jaxpr)]
    return {name: names.count(name) for name in ("conv_fwd", "conv_dgrad", "conv_wgrad") if name in names}


def counts(text):
    """How many custom calls of ours and how many convolutions of XLA the text of a lowered program has."""
    ours = sum(text.count(f"@{name}(") for name in jcc.CUSTOM_CALL_TARGETS)
    return ours, text.count("stablehlo.convolution")


def run_page(page):
    """Run the Python blocks of a page of the repository, one after the other; the names they define."""
    path, namespace = TESTS.parent / page, {}
    text = path.read_text()
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        line = text[: block.start(1)].count("\n")  # so that a traceback shows the page's
        exec(compile("\n" * line + block[1], path, "exec"), namespace)
    return namespace


def rerun(problem):
    return f'rerun: python -m pytest tests/test_values.py --problem "{problem}"'


def assert_equal(actual, desired, message=""):
    """Same dtype, same shape, same values; infinities and NaNs in the same places."""
    actual, desired = np.asarray(actual), np.asarray(desired)
    assert actual.dtype == desired.dtype, f"dtype {actual.dtype}, not {desired.dtype}: {message}"
    assert actual.shape == desired.shape, f"shape {actual.shape}, not {desired.shape}: {message}"
    if actual.dtype == jnp.bfloat16:
        actual, desired = actual.astype(np.float32), desired.astype(np.float32)
    np.testing.assert_array_equal(actual, desired, err_msg=message)


def native_missing():
    """Why the native backend cannot be used here, or None."""
    try:
        with jcc.options(backend="native"):
            jax.jit(jcc.conv)(jnp.ones((1, 4, 1), jnp.float32), jnp.ones((2, 1, 1), jnp.float32))
    except Exception as error:
        return f"no native backend: {error}".splitlines()[0]
    return None


def python(*arguments, timeout=300, **environment):
    """Run Python in a fresh process in this folder; its output, or a failure that shows it."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    run = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=TESTS,
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if run.returncode:
        pytest.fail(
            f"exit status {run.returncode} of {arguments}, {environment}\n{run.stdout}\n{run.stderr}",
            pytrace=False,
        )
    return run.stdout
