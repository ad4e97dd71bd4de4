"""`patch_jax`: the convolutions of code that knows only `jax.lax`, and JAX's own again afterwards."""

import functools
import threading

import harness
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import mlir

import jax_cudnn_conv as jcc
from jax_cudnn_conv import _compat

pytestmark = pytest.mark.usefixtures("unpatched")
PLATFORMS = ("cpu", "cuda")


def rules():
    return [_compat.get_lowering(lax.conv_general_dilated_p, platform) for platform in (*PLATFORMS, None)]


JAX_RULES = rules()


def counts(function, *arguments):
    """How many custom calls of ours and how many convolutions of XLA a lowered program has."""
    return harness.counts(jax.jit(function).lower(*arguments).as_text())


def draw(*shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.integers(-3, 4, shape), dtype) for shape in shapes]


# Layers as other libraries write them: the shapes of lhs and rhs, and what `conv_general_dilated` is told.
NHWC = ("NHWC", "HWIO", "NHWC")
LAYERS = {
    "strides": ((2, 4, 9, 8), (6, 4, 3, 3), {"window_strides": (2, 2), "padding": "SAME"}),
    "channels last": (
        (2, 9, 8, 4),
        (3, 3, 4, 6),
        {"window_strides": (1, 2), "padding": "SAME", "dimension_numbers": NHWC},
    ),
    "groups, dilated": (
        (2, 4, 9),
        (6, 2, 3),
        {"window_strides": (2,), "padding": ((1, 3),), "rhs_dilation": (2,), "feature_group_count": 2},
    ),
    "depthwise": (
        (2, 9, 8, 4),
        (3, 3, 1, 4),
        {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC, "feature_group_count": 4},
    ),
    "transposed": (
        (2, 4, 5, 4),
        (6, 4, 3, 3),
        {"window_strides": (1, 1), "padding": ((1, 2), (2, 1)), "lhs_dilation": (2, 2)},
    ),
    "volume": ((1, 2, 5, 4, 6), (3, 2, 2, 3, 3), {"window_strides": (2, 1, 1), "padding": "SAME"}),
}


def layer(name):
    lhs, rhs, keywords = LAYERS[name]
    return functools.partial(lax.conv_general_dilated, **keywords), *draw(lhs, rhs)


def loss_of(conv):
    return lambda lhs, rhs: jnp.sum(conv(lhs, rhs) ** 2)


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients(name):
    """Equal numbers, from three of our kernels in the place of three convolutions."""
    conv, lhs, rhs = layer(name)
    step = jax.value_and_grad(loss_of(conv), (0, 1))
    before, theirs = counts(step, lhs, rhs), jax.jit(step)(lhs, rhs)
    with jcc.patch_jax():
        during, ours, eager = counts(step, lhs, rhs), jax.jit(step)(lhs, rhs), conv(lhs, rhs)
    assert (before, during, counts(step, lhs, rhs)) == ((0, 3), (3, 0), (0, 3))
    jax.tree.map(harness.assert_equal, ours, theirs)
    harness.assert_equal(eager, conv(lhs, rhs))


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_c49_groups(groups):
    """Each of the three, however many groups: XLA's gradient by the kernel takes a hundred times as long."""
    conv = functools.partial(
        lax.conv_general_dilated,
        window_strides=(1, 1),
        padding="SAME",
        dimension_numbers=NHWC,
        feature_group_count=groups,
    )
    lhs, rhs = draw((2, 6, 5, 8), (3, 3, 8 // groups, 8))
    step = jax.value_and_grad(loss_of(conv), (0, 1))
    theirs = jax.jit(step)(lhs, rhs)
    with jcc.patch_jax():
        assert counts(step, lhs, rhs) == (3, 0)
        jax.tree.map(harness.assert_equal, jax.jit(step)(lhs, rhs), theirs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32", "complex64"])
def test_dtypes(dtype):
    conv, *_ = layer("transposed")
    lhs, rhs = draw(*LAYERS["transposed"][:2], dtype=dtype)
    theirs = jax.jit(conv)(lhs, rhs)
    with jcc.patch_jax():
        harness.assert_equal(jax.jit(conv)(lhs, rhs), theirs)
        expected = {"float64": (0, 1), "int32": (0, 1), "complex64": (3, 0)}.get(dtype, (1, 0))
        assert counts(conv, lhs, rhs) == expected


def test_preferred_element_type_and_precision():
    lhs, rhs = draw((2, 4, 9), (6, 4, 3), dtype=jnp.bfloat16)
    for more in ({"preferred_element_type": jnp.float32}, {"precision": ("highest", "default")}):
        conv = functools.partial(lax.conv_general_dilated, window_strides=(2,), padding="SAME", **more)
        theirs = jax.jit(conv)(lhs, rhs)
        with jcc.patch_jax():
            assert counts(conv, lhs, rhs) == (1, 0)
            harness.assert_equal(jax.jit(conv)(lhs, rhs), theirs)


def test_what_has_no_kernel_stays_as_it_was():
    """The same program as unpatched, to the letter."""
    conv = functools.partial(lax.conv_general_dilated, window_strides=(3,), padding=((2, 2),))
    both = functools.partial(conv, lhs_dilation=(2,), rhs_dilation=(2,))
    arguments = draw((2, 3, 5), (4, 3, 3))
    double = draw((2, 3, 5), (4, 3, 3), dtype=np.float64)
    before = [jax.jit(f).lower(*a).as_text() for f, a in ((both, arguments), (conv, double))]
    with jcc.patch_jax():
        after = [jax.jit(f).lower(*a).as_text() for f, a in ((both, arguments), (conv, double))]
    assert after == before


def test_options_hold():
    conv, lhs, rhs = layer("strides")
    with jcc.patch_jax(), jcc.options(backend="xla"):
        assert counts(conv, lhs, rhs) == (0, 1)


def test_idempotent_and_reversible():
    conv, lhs, rhs = layer("strides")
    for _ in range(2):
        jcc.patch_jax()
        jcc.patch_jax()
        assert all(ours is not theirs for ours, theirs in zip(rules()[:2], JAX_RULES[:2], strict=True))
        assert counts(conv, lhs, rhs) == (1, 0)
        jcc.unpatch_jax()
        assert all(now is then for now, then in zip(rules(), JAX_RULES, strict=True))
        jcc.unpatch_jax()
        assert counts(conv, lhs, rhs) == (0, 1)


def test_contexts_nest():
    conv, lhs, rhs = layer("strides")
    with jcc.patch_jax():
        with pytest.raises(KeyError), jcc.patch_jax():
            raise KeyError
        assert counts(conv, lhs, rhs) == (1, 0)
    assert counts(conv, lhs, rhs) == (0, 1)
    jcc.patch_jax()
    with jcc.patch_jax():
        pass
    assert counts(conv, lhs, rhs) == (1, 0)
    with jcc.patch_jax():
        jcc.unpatch_jax()
        assert counts(conv, lhs, rhs) == (0, 1)
    assert rules() == JAX_RULES


def test_rules_of_others_stay():
    """One registered before is used where we have no kernel; one registered after is not removed."""
    primitive, called = lax.conv_general_dilated_p, []

    def theirs(ctx, *args, **params):
        called.append(ctx)
        return JAX_RULES[0].rule(ctx, *args, **params)

    try:
        mlir.register_lowering(primitive, theirs, platform="cpu")
        conv, lhs, rhs = layer("strides")
        with jcc.patch_jax():
            assert counts(conv, lhs, rhs) == (1, 0)
            assert not called
            assert counts(conv, lhs.astype(np.float64), rhs.astype(np.float64)) == (0, 1)
            assert called
        assert rules()[0].rule is theirs
        with jcc.patch_jax():
            mlir.register_lowering(primitive, theirs, platform="cpu")
        assert rules()[0].rule is theirs
    finally:
        _compat.set_lowering(primitive, "cpu", JAX_RULES[0])


def test_no_program_is_left_over():
    """What was compiled before is compiled again, and not used afterwards."""
    conv, lhs, rhs = layer("strides")
    f = jax.jit(conv)
    f(lhs, rhs)
    seen = []
    for context in (jcc.patch_jax, jcc.options):
        with context():
            f(lhs, rhs)
            seen.append(f.lower(lhs, rhs).compile().as_text())
    assert [jcc.CUSTOM_CALL_TARGETS[0] in text for text in seen] == [True, False]


def in_scan(conv, x, w):
    return lax.scan(lambda carry, _: (jnp.sign(conv(carry, w)), None), x, None, length=3)[0]


def in_while(conv, x, w):
    def body(state):
        step, carry = state
        return step + 1, jnp.sign(conv(carry, w))

    return lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]


def in_cond(conv, x, w):
    return lax.cond(x[0, 0, 0] > 5, lambda x: x, lambda x: conv(x, w), x)


@pytest.mark.parametrize("structure", [in_scan, in_while, in_cond])
@pytest.mark.parametrize("layout", [("NCW", "OIW", "NCW"), ("NWC", "WIO", "NWC")])
def test_c51_control_flow(structure, layout):
    """Channels first in a loop, too, where XLA's convolution is a hundred times slower than outside."""
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=(1,), padding="SAME", dimension_numbers=layout
    )
    x, w = draw(*((2, 4, 9), (4, 4, 3)) if layout[0] == "NCW" else ((2, 9, 4), (3, 4, 4)))
    f = functools.partial(structure, conv)
    theirs = jax.jit(f)(x, w)
    with jcc.patch_jax():
        assert counts(f, x, w) == (1, 0)
        harness.assert_equal(jax.jit(f)(x, w), theirs)
        if structure is in_scan:
            gradients = jax.grad(lambda x, w: jnp.sum(f(x, w)), (0, 1))
            assert jax.jit(gradients)(x, w)[1].shape == w.shape


@pytest.mark.parametrize("name", ["strides", "groups, dilated", "transposed"])
def test_gradients_of_samples(name):
    """vmap(grad): JAX folds the samples into the features of a grouped convolution, which is ours again."""
    conv, lhs, rhs = layer(name)
    samples = draw((3, *lhs.shape), seed=1)[0]
    f = jax.vmap(jax.grad(loss_of(conv), (0, 1)), (0, None))
    theirs = jax.jit(f)(samples, rhs)
    with jcc.patch_jax():
        assert counts(f, samples, rhs) == (3, 0)
        jax.tree.map(harness.assert_equal, jax.jit(f)(samples, rhs), theirs)


def test_second_derivatives():
    conv, lhs, rhs = layer("strides")
    f = jax.hessian(lambda rhs: jnp.sum(conv(lhs[:1, :, :4, :4], rhs) ** 3))
    small = rhs[:2, :, :2, :2]
    theirs = jax.jit(f)(small)
    with jcc.patch_jax():
        assert counts(f, small)[1] == 0
        harness.assert_equal(jax.jit(f)(small), theirs)


def test_two_threads():
    """Both compile under the patch, which ends with the last context that is open."""
    conv, lhs, rhs = layer("strides")
    theirs, errors, barrier = conv(lhs, rhs), [], threading.Barrier(2)

    def run(strides):
        try:
            for _ in range(3):
                barrier.wait(60)
                with jcc.patch_jax():
                    g = functools.partial(conv, window_strides=strides)
                    assert counts(g, lhs, rhs) == (1, 0)
                    out = jax.jit(g)(lhs, rhs)
                    if strides == (2, 2):
                        harness.assert_equal(out, theirs)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(strides,)) for strides in ((2, 2), (1, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert rules() == JAX_RULES


def test_several_devices():
    harness.python("child.py", "patched_devices")
