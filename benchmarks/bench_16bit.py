"""What 16-bit types cost on a CPU without instructions for them: time divided by float32's.

    ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/bench_16bit.py

Samples of the three dtypes are taken in turn; a ratio is that of the shortest times.
"""

import time

import jax
import jax.numpy as jnp

import jax_cudnn_conv as jcc

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = ((2, 16, 16, 8), (8, 28, 28, 64))
SAMPLES = 400


def functions(shape):
    kernel_shape = (3, 3, shape[-1], shape[-1])
    return {
        "forward": lambda x, w: jcc.conv(x, w),
        "backward-data": lambda x, w: jcc.conv_backward_data(x, w, input_shape=shape),
        "backward-filter": lambda x, w: jcc.conv_backward_filter(x, x, kernel_shape=kernel_shape),
        "transposed": lambda x, w: jcc.conv_transpose(x, w, strides=2),
    }


def shortest(function, shape):
    """The shortest time for each dtype, in seconds."""
    compiled = []
    for dtype in DTYPES:
        arguments = jnp.ones(shape, dtype), jnp.ones((3, 3, shape[-1], shape[-1]), dtype)
        program = jax.jit(function).lower(*arguments).compile()
        program(*arguments).block_until_ready()
        compiled.append((program, arguments))
    best = [float("inf")] * len(DTYPES)
    for _ in range(SAMPLES):
        for k, (program, arguments) in enumerate(compiled):
            start = time.perf_counter()
            program(*arguments).block_until_ready()
            best[k] = min(best[k], time.perf_counter() - start)
    return best


if __name__ == "__main__":
    for shape in SHAPES:
        for name, function in functions(shape).items():
            f32, *others = shortest(function, shape)
            ratios = ", ".join(f"{d} {t / f32:.2f}" for d, t in zip(DTYPES[1:], others, strict=True))
            print(f"{'x'.join(map(str, shape)):12} {name:16} float32 {f32 * 1e6:6.0f} us, {ratios}")
