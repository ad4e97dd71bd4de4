"""What tests run in a process of its own: `python child.py NAME [ARGUMENT...]`. A failed check raises."""

import os
import re
import signal
import sys
import threading
import time

import harness
import jax
import numpy as np
import problems
import pytest
from jax.sharding import PartitionSpec as P

import jax_cudnn_conv as jcc
from jax_cudnn_conv import _native


def values(*texts):
    """The given problems, exactly; then the native backend's instruction set and threads."""
    for text in texts:
        harness.check_every_function(problems.parse(text))
    module = _native.onednn()
    print(module.info() if module else _native.onednn_error())


def devices():
    """shard_map and pmap over four virtual devices, with gradients."""
    jax.config.update("jax_num_cpu_devices", 4)
    problem = problems.parse("g2_n8i4o6_h5k2s2p1,0_w6k3p0,2d2")
    x, w = harness.operands("conv", problem)
    y = harness.arrays(problem)["y"]
    conv = harness.function("conv", problem)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    for check_vma in (True, False):
        f = jax.shard_map(
            conv, mesh=mesh, in_specs=(P("batch"), P()), out_specs=P("batch"), check_vma=check_vma
        )
        out, vjp = jax.vjp(jax.jit(f), x, w)
        dx, dw = jax.jit(vjp)(y)
        harness.assert_equal(out, harness.oracle("conv", problem, x, w))
        harness.assert_equal(dx, harness.third(problem, "x", y=y, w=w))
        harness.assert_equal(dw, harness.third(problem, "w", x=x, y=y))
    for name in ("conv_backward_data", "conv_transpose"):
        few = problems.parse("g2_n2i4o6_h5k2s2p1,0_w6k3p0,2d2")
        f = jax.shard_map(
            harness.function(name, few), mesh=mesh, in_specs=(P("batch"), P()), out_specs=P("batch")
        )
        harness.assert_equal(jax.jit(f)(y, w), harness.third(problem, "x", y=y, w=w))
    local = jax.pmap(conv, in_axes=(0, None))(x.reshape(4, 2, *x.shape[1:]), w)
    harness.assert_equal(local.reshape(y.shape), harness.oracle("conv", problem, x, w))
    sharded = jax.device_put(x, jax.NamedSharding(mesh, P("batch")))
    harness.assert_equal(jax.jit(conv)(sharded, w), harness.oracle("conv", problem, x, w))


def _resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory():
    """1500 calls over 300 lengths from one thread, then from four: memory is flat once the cache is full."""
    module = _native.onednn()
    module.set_plan_cache_capacity(32)
    lengths = np.random.default_rng(0).choice(np.arange(100, 3000), 300, replace=False)
    w, ones = np.ones((3, 100, 200), np.float32), np.ones((1, 3000, 100), np.float32)
    programs = {length: jax.jit(jcc.conv).lower(ones[:, :length], w).compile() for length in lengths}

    def calls(seed):
        """Each length once."""
        for length in np.random.default_rng(seed).permutation(lengths):
            y = np.asarray(programs[length](ones[:, :length], w))
            assert y[0, 1, 0] == 300, length

    def in_four_threads():
        threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    used = [_resident()]
    for seed in range(5):
        calls(seed)
        used.append(_resident())
    for _ in range(2):
        in_four_threads()
        used.append(_resident())
    info = module.plan_cache_info()
    print("MiB before, after each of five rounds, and of two in four threads:", list(map(round, used)), info)
    assert info["size"] == info["capacity"] == 32, info
    assert info["misses"] > 1500, info
    assert used[5] - used[2] < 8, used
    assert used[7] - used[6] < 8, used


def fork(when):
    """Fork "before" JAX runs, or after it has: the child then uses an "old" or a "new" program."""
    old, new = problems.parse("n2i16o17_h8k3p1_w9k3p1"), problems.parse("n2i3o5_h7k3p1_w8k3")
    x, w = harness.operands("conv", old)
    f = jax.jit(harness.function("conv", old))
    if when != "before":
        harness.assert_equal(f(x, w), harness.oracle("conv", old, x, w))
    pid = os.fork()
    if pid == 0:
        try:
            if when == "new":
                harness.check_every_function(new)
            else:
                harness.assert_equal(f(x, w), harness.oracle("conv", old, x, w))
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
        print("right", flush=True)
        os._exit(0)
    for _ in range(300):
        done, _ = os.waitpid(pid, os.WNOHANG)
        if done:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the forked child hung for 30 s")


def without_native():
    """What still works where the compiled module cannot be loaded."""
    for text in problems.FEW[:2]:
        harness.check_every_function(problems.parse(text))
    jcc.show_config()
    x, w = np.ones((1, 5, 2), np.float32), np.ones((3, 2, 3), np.float32)
    with jcc.options(backend="native"), pytest.raises(NotImplementedError, match="_onednn"):
        jax.jit(jcc.conv)(x, w)


COLLECTIVES = ("all-gather", "all-reduce")


def _collectives(function, *arguments):
    """The compiled function, and how many all-gathers and all-reduces its program has."""
    compiled = jax.jit(function).lower(*arguments).compile()
    text = compiled.as_text()
    return compiled, tuple(len(re.findall(rf"= \S+ {name}(?:-start)?\(", text)) for name in COLLECTIVES)


def sharding():
    """Arrays split over a 2 x 2 mesh: right values, and no more collectives than the mathematics asks for."""
    jax.config.update("jax_num_cpu_devices", 4)
    mesh = jax.make_mesh((2, 2), ("b", "t"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    problem = problems.parse("n4i4o6_h5k2s2p1,0_w6k3p0,2d2")
    (x, w), y = harness.operands("conv", problem), harness.arrays(problem)["y"]
    conv = harness.function("conv", problem)
    data = harness.function("conv_backward_data", problem)
    filt = harness.function("conv_backward_filter", problem)
    wanted = {
        "y": harness.third(problem, "y", x=x, w=w),
        "x": harness.third(problem, "x", y=y, w=w),
        "w": harness.third(problem, "w", x=x, y=y),
    }

    def check(role, function, a, a_spec, b, b_spec, gathers, reduces, result_spec):
        placed = [jax.device_put(v, jax.NamedSharding(mesh, s)) for v, s in ((a, a_spec), (b, b_spec))]
        compiled, counts = _collectives(function, *placed)
        out = compiled(*placed)
        harness.assert_equal(out, wanted[role])
        assert counts == (gathers, reduces), (role, a_spec, b_spec, counts)
        assert out.sharding.is_equivalent_to(jax.NamedSharding(mesh, result_spec), out.ndim), out.sharding

    batch, whole = P("b"), P()
    check("y", conv, x, batch, w, whole, 0, 0, batch)
    check("x", data, y, batch, w, whole, 0, 0, batch)
    check("w", filt, x, batch, y, batch, 0, 1, whole)
    check("y", conv, x, P(("b", "t")), w, whole, 0, 0, P(("b", "t")))
    out_features, in_features = P(None, None, None, "t"), P(None, None, "t")
    check("y", conv, x, batch, w, out_features, 0, 0, P("b", None, None, "t"))
    check("y", conv, x, P("b", None, None, "t"), w, in_features, 0, 1, batch)

    # A bias and an activation change nothing of it.
    placed = jax.device_put(x, jax.NamedSharding(mesh, batch))
    bias = np.arange(6, dtype=np.float32)
    compiled, counts = _collectives(lambda x: conv(x, w, bias=bias, activation="relu"), placed)
    harness.assert_equal(compiled(placed), np.maximum(wanted["y"] + bias, 0))
    assert counts == (0, 0), counts

    # Inside a shard_map over one axis, XLA splits its own convolution over the other.
    spread = jax.device_put(x, jax.NamedSharding(mesh, P(("b", "t"))))
    partly = jax.shard_map(conv, mesh=mesh, in_specs=(batch, whole), out_specs=batch, axis_names={"b"})
    compiled, counts = _collectives(partly, spread, w)
    harness.assert_equal(compiled(spread, w), wanted["y"])
    assert counts == (0, 0), counts

    # Groups: the batch splits, the features are gathered.
    grouped = problems.parse("g2_n4i4o6_h5k2s2p1,0_w6k3p0,2d2")
    x, w = harness.operands("conv", grouped)
    placed = jax.device_put(x, jax.NamedSharding(mesh, batch))
    compiled, counts = _collectives(harness.function("conv", grouped), placed, w)
    harness.assert_equal(compiled(placed, w), harness.oracle("conv", grouped, x, w))
    assert counts == (0, 0), counts


def patched_devices():
    """Under `patch_jax`, what XLA partitions stays XLA's, to the letter; each part of a shard_map is ours."""
    jax.config.update("jax_num_cpu_devices", 4)
    mesh = jax.make_mesh((2, 2), ("b", "t"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    problem = problems.parse("n4i4o6_h5k2s2p1,0_w6k3p0,2d2@NCHW-OIHW-NCHW")
    (x, w), y = harness.operands("conv", problem), harness.third(problem, "y", **harness.arrays(problem))

    def conv(x, w):
        pads = problem.pads
        return jax.lax.conv_general_dilated(x, w, problem.strides, pads, rhs_dilation=problem.dilation)

    def both(x, w):
        out, vjp = jax.vjp(conv, x, w)
        return out, *vjp(out)

    wanted = y, harness.third(problem, "x", y=y, w=w), harness.third(problem, "w", x=x, y=y)

    def check(function, spec, ours):
        placed = jax.device_put(x, jax.NamedSharding(mesh, spec))
        before, counts = _collectives(function, placed, w)
        with jcc.patch_jax():
            compiled, patched = _collectives(function, placed, w)
            out = compiled(placed, w)
        assert patched == counts, (spec, patched, counts)
        assert any(name in compiled.as_text() for name in jcc.CUSTOM_CALL_TARGETS) == ours
        for result, value in zip(jax.tree.leaves(out), wanted, strict=False):
            harness.assert_equal(result, value)

    for spec in (P("b"), P(("b", "t")), P("b", None, None, "t"), P(None, "t")):
        check(both, spec, False)
    split = {"mesh": mesh, "in_specs": (P("b"), P()), "out_specs": P("b")}
    check(jax.shard_map(conv, **split), P("b"), True)
    check(jax.shard_map(conv, **split, axis_names={"b"}), P("b"), False)
    with jcc.patch_jax():
        local = jax.pmap(conv, in_axes=(0, None))(x.reshape(4, 1, *x.shape[1:]), w)
    harness.assert_equal(local.reshape(y.shape), y)


def explicit_mesh():
    """A mesh whose splits are part of the types: gradients come back split as the operands are."""
    jax.config.update("jax_num_cpu_devices", 4)
    mesh = jax.make_mesh((4,), ("b",), axis_types=(jax.sharding.AxisType.Explicit,))
    problem = problems.parse("n8i4o6_h5k2s2p1,0_w6k3p0,2d2")
    (x, w), y = harness.operands("conv", problem), harness.arrays(problem)["y"]
    with jax.set_mesh(mesh):
        placed = jax.device_put(x, jax.NamedSharding(mesh, P("b")))
        out, vjp = jax.vjp(jax.jit(harness.function("conv", problem)), placed, w)
        assert jax.typeof(out).sharding.spec[0] == "b", jax.typeof(out)
        dx, dw = vjp(jax.device_put(y, jax.NamedSharding(mesh, jax.typeof(out).sharding.spec)))
        assert jax.typeof(dx).sharding == jax.typeof(placed).sharding
    harness.assert_equal(out, harness.oracle("conv", problem, x, w))
    harness.assert_equal(dx, harness.third(problem, "x", y=y, w=w))
    harness.assert_equal(dw, harness.third(problem, "w", x=x, y=y))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
