"""What cuDNN refuses becomes a Python error with its status and the problem, or another plan."""

import re

import gpu_on_cpu
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cudnn_conv as jcc
from jax_cudnn_conv import _targets

double = gpu_on_cpu.double
module = _targets.cudnn()
FAILURE = (
    jax.errors.JaxRuntimeError,
    ValueError,
)  # the latter from the second call of a compiled function on
X, W = np.ones((1, 9, 6), np.float32), np.ones((3, 6, 5), np.float32)


@pytest.fixture(autouse=True)
def fresh():
    """No plan in the cache, so that each test makes its own."""
    double.double_reset()
    module.set_plan_cache_capacity(0)
    module.set_plan_cache_capacity(1024)
    yield
    double.double_reset()
    module.set_host_memory(2**63 - 1)


def convolve():
    return np.asarray(jax.jit(jcc.conv)(X, W))[0, 1, 0]


@pytest.mark.parametrize(
    ("status", "name", "code"),
    [
        (1001, "NOT_INITIALIZED", "FAILED_PRECONDITION"),
        (1002, "SUBLIBRARY_VERSION_MISMATCH", "FAILED_PRECONDITION"),
        (1008, "SUBLIBRARY_LOADING_FAILED", "FAILED_PRECONDITION"),
        (2000, "BAD_PARAM", "INTERNAL"),
        (2003, "BAD_PARAM_MISALIGNED_POINTER", "INTERNAL"),
        (3000, "NOT_SUPPORTED", "UNIMPLEMENTED"),
        (3007, "NOT_SUPPORTED_ARCH_MISMATCH", "UNIMPLEMENTED"),
        (4000, "INTERNAL_ERROR", "INTERNAL"),
        (5000, "EXECUTION_FAILED", "INTERNAL"),
        (5001, "EXECUTION_FAILED_CUDA_DRIVER", "INTERNAL"),
    ],
)
def test_every_status_of_an_execution(status, name, code):
    double.double_fail_engine(-1, status)
    with pytest.raises(FAILURE, match=rf"{code}: cuDNN: execute eng\S+: CUDNN_STATUS_{name}") as e:
        convolve()
    assert code == "FAILED_PRECONDITION" or "[fwd groups=1 x:f32=(1,6,9) w:f32=(5,6,3) y:f32=" in str(e.value)
    double.double_fail_engine(-1, 0)
    assert convolve() == 18  # nothing is left over from the failure


@pytest.mark.parametrize("status", [4003, 4004])
def test_no_memory(status):
    double.double_fail_engine(-1, status)
    with pytest.raises(FAILURE, match="RESOURCE_EXHAUSTED: jax_cudnn_conv: out of memory"):
        convolve()


def test_no_handle():
    """In a process of its own: handles are kept once there are some."""
    import harness

    program = """
import gpu_on_cpu
gpu_on_cpu.install().double_fail_create(1001)
import jax, numpy as np, jax_cudnn_conv as jcc
try:
    jax.jit(jcc.conv)(np.ones((1, 9, 6), np.float32), np.ones((3, 6, 5), np.float32))
except jax.errors.JaxRuntimeError as error:
    print(error)
"""
    told = harness.python("-c", program)
    assert re.match(
        "FAILED_PRECONDITION: cuDNN cannot be used on this GPU: cudnnCreate: .*NOT_INITIALIZED", told
    )


def test_another_plan_takes_over():
    """A plan that is refused as it runs is replaced, for this call and the next."""
    assert convolve() == 18
    refused = double.double_last_engine()
    double.double_fail_engine(refused, 3000)
    assert convolve() == 18
    taken = double.double_last_engine()
    assert taken != refused
    double.double_fail_engine(refused, 4000)  # not even tried again
    assert convolve() == 18
    assert double.double_last_engine() == taken


def test_c29_no_memory_for_the_workspace():
    """The best plan without a workspace, with the same values."""
    x, y = np.ones((4, 16, 16, 16), np.float16), np.ones((4, 16, 16, 32), np.float16)

    def wgrad(x, y):
        return jcc.conv_backward_filter(x, y, kernel_shape=(3, 3, 16, 32))

    with_workspace = np.asarray(jax.jit(wgrad)(x, y))
    assert double.double_last_workspace() > 0
    module.set_host_memory(0)
    without = np.asarray(jax.jit(wgrad)(x, y))
    assert double.double_last_workspace() == 0
    np.testing.assert_array_equal(without, with_workspace)
    module.set_host_memory(2**63 - 1)
    for limit in (0, 1 << 20, 1 << 40):
        with jcc.options(workspace_limit=limit):
            np.testing.assert_array_equal(np.asarray(jax.jit(wgrad)(x, y)), with_workspace)
        assert 0 <= double.double_last_workspace() <= limit


def test_denied_engines():
    """An engine that is wrong for someone's problem can be left out."""
    module.deny_engines([])
    convolve()
    engine = double.double_last_engine()
    try:
        module.deny_engines([f"eng{engine}"])
        module.set_plan_cache_capacity(0)
        assert convolve() == 18
        assert double.double_last_engine() != engine
    finally:
        module.deny_engines([])


def call_handler(*operands, **changes):
    """A call that no lowering writes, as in a program that was changed on its way."""
    attributes = {
        "x_dims": [0, 2, 1],
        "w_dims": [2, 1, 0],
        "y_dims": [0, 2, 1],
        "strides": [1],
        "dilation": [1],
        "pad_low": [1],
        "groups": 1,
        "allow_narrow": True,
        "relu": False,
        "deterministic": False,
        "workspace_limit": 0,
        "autotune": 0,
    }
    typed = {
        name: np.asarray(value, np.bool_ if isinstance(value, bool) else np.int64)[()]
        for name, value in (attributes | changes).items()
    }
    call = jax.ffi.ffi_call(_targets.CUDNN_TARGETS["y"], jax.ShapeDtypeStruct((1, 9, 5), jnp.float32))
    return np.asarray(jax.jit(lambda *operands: call(*operands, **typed))(*operands))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"autotune": 7}, "autotune must be 0, 1 or 2"),
        ({"groups": 0}, "groups must divide the output features"),
        ({"strides": [0]}, "strides must be between 1"),
        ({"x_dims": [0, 0, 1]}, "dims must be a permutation"),
        ({"pad_low": [1, 1]}, "one entry per spatial axis"),
    ],
)
def test_the_handler_trusts_no_attribute(changes, message):
    assert call_handler(X, W)[0, 1, 0] == 18
    with pytest.raises(FAILURE, match=f"INVALID_ARGUMENT: jax_cudnn_conv: .*{message}"):
        call_handler(X, W, **changes)


def test_the_handler_checks_the_bias():
    assert call_handler(X, W, np.ones(5, np.float32))[0, 1, 0] == 19
    for wrong in (np.ones(4, np.float32), np.ones((5, 1), np.float32), np.ones(5, np.float64)):
        with pytest.raises(FAILURE, match="the bias must have one entry per output feature"):
            call_handler(X, W, wrong)
