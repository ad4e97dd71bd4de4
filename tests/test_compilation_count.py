"""C35: equal calls compile once, however the geometry is written."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cudnn_conv as jcc

X, W, Y = (
    np.ones((2, 9, 8, 4), np.float32),
    np.ones((3, 2, 2, 6), np.float32),
    np.ones((2, 5, 5, 6), np.float32),
)
ARGUMENTS = {
    "conv": (X, W, {}),
    "conv_transpose": (Y, W, {}),
    "conv_backward_data": (Y, W, {"input_shape": X.shape}),
    "conv_backward_filter": (X, Y, {"kernel_shape": W.shape}),
}
SPELLINGS = [
    {"strides": 2, "padding": 1, "dilation": 1, "groups": 2},
    {"strides": (2, 2), "padding": (1, 1), "dilation": (1, 1), "groups": np.int32(2)},
    {"strides": [2, 2], "padding": [[1, 1], [1, 1]], "dilation": [1, 1], "groups": np.uint8(2)},
    {
        "strides": np.array([2, 2]),
        "padding": np.array([[1, 1], [1, 1]]),
        "dilation": np.int64(1),
        "groups": 2,
    },
    {
        "strides": (np.int32(2), 2),
        "padding": [[np.int64(1), 1], (1, np.int8(1))],
        "dilation": np.ones(2, int),
        "groups": 2,
    },
    {
        "strides": jnp.int32(2),
        "padding": (jnp.int32(1), 1),
        "dilation": (jnp.int32(1), 1),
        "groups": jnp.int32(2),
    },
]
_compilations = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **_: (
        _compilations.append(event) if event == "/jax/core/compile/backend_compile_duration" else None
    )
)


@contextlib.contextmanager
def compilations(expected):
    """Fails unless the block compiles this many programs."""
    before = len(_compilations)
    yield
    assert len(_compilations) - before == expected


def calls(name, count):
    """The same call again and again, written in every way in turn."""
    a, b, more = ARGUMENTS[name]
    return [getattr(jcc, name)(a, b, **more, **SPELLINGS[i % len(SPELLINGS)]) for i in range(count)]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_one_compilation_for_a_hundred_eager_calls(name, backend):
    jax.clear_caches()
    with jcc.options(backend=backend):
        first = calls(name, 1)[0]
        with compilations(0):
            results = calls(name, 100)
    assert all((result == first).all() for result in results)


def test_the_count_notices_a_compilation():
    jax.clear_caches()
    with pytest.raises(AssertionError), compilations(0):
        jcc.conv(X, W, groups=2)
    with compilations(1):
        jcc.conv(X, W, groups=2, strides=3)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_spelling_is_the_same_program(name):
    a, b, more = ARGUMENTS[name]
    programs = {
        str(jax.make_jaxpr(lambda a, b, s=spelling: getattr(jcc, name)(a, b, **more, **s))(a, b))
        for spelling in SPELLINGS
    }
    assert len(programs) == 1


def test_under_jit_with_gradients(backend):
    @jax.jit
    def step(x, w):
        return jax.value_and_grad(lambda w: jnp.sum(jcc.conv(x, w, strides=2, groups=2) ** 2))(w)

    with jcc.options(backend=backend):
        with compilations(1):
            jax.block_until_ready(step(X, W))
        with compilations(0):
            for _ in range(100):
                jax.block_until_ready(step(X, W))


def test_options_are_part_of_the_key(native_missing):
    """Another backend is another program, and going back finds the first one again."""
    f = jax.jit(lambda x, w: jcc.conv(x, w, groups=2, padding=(3, 1)))
    with compilations(2):
        for backend in ("auto", "xla") * 3:
            with jcc.options(backend=backend):
                f(X, W)
