"""Trials of cuDNN's plans. The double says how long each engine takes, so that the winner is known."""

import json
import warnings

import gpu_on_cpu
import harness
import jax
import numpy as np
import pytest

import jax_cudnn_conv as jcc
from jax_cudnn_conv import _targets, _winners

double = gpu_on_cpu.double
module = _targets.cudnn()
# Engines 20 and 34 are among the candidates, and engine 0 is cuDNN's first recommendation.
X, Y = np.ones((1, 8, 8, 16), np.float32), np.ones((1, 8, 8, 32), np.float32)
FAILURE = (
    jax.errors.JaxRuntimeError,
    ValueError,
)  # the latter from the second call of a compiled function on


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, and nothing remembered."""
    monkeypatch.setenv("JAX_CUDNN_CONV_CACHE_DIR", str(tmp_path))
    forget()
    yield tmp_path / "plans.json"
    forget()
    module.set_host_memory(2**63 - 1)


def forget():
    """As a new process would start."""
    double.double_reset()
    _winners._known = None
    module.set_plan_cache_capacity(0)
    module.set_plan_cache_capacity(1024)


def wgrad(x, y):
    return jcc.conv_backward_filter(x, y, kernel_shape=(3, 3, 16, 32))


def run(autotune="limited", **options):
    """The engine that ran, once the values are right."""
    with jcc.options(autotune=autotune, **options):
        dw = jax.jit(wgrad)(X, Y)
    assert float(dw[1, 1, 0, 0]) == 64
    return double.double_last_engine()


def make_fastest(engine):
    double.double_delay_engine(-1, 30000)
    double.double_delay_engine(engine, 0)


def test_the_fastest_wins(cache):
    assert run("off") == 0
    assert not cache.exists()
    for wanted in (34, 20):
        forget()
        cache.unlink(missing_ok=True)
        make_fastest(wanted)
        assert run() == wanted
    stored = json.loads(cache.read_text())["plans"]
    (key,) = stored
    assert stored[key].startswith("eng20")
    assert key.startswith("Stand-in GPU | cuDNN 9.")
    assert "wgrad groups=1 x:f32=(1,16,8,8)" in key
    assert key.endswith("workspace<=1073741824")


def test_one_trial_for_each_problem(cache):
    run()
    before = double.double_executions()
    run()
    assert double.double_executions() == before + 1
    with jcc.options(deterministic=True):
        run()  # other options, another problem
    assert double.double_executions() > before + 3
    assert len(json.loads(cache.read_text())["plans"]) == 2


def test_the_workspace_limit_is_kept():
    """By trials "limited" to it, and not by those for the "fastest"."""
    x, y = np.ones((2, 16, 16, 16), np.float16), np.ones((2, 16, 16, 32), np.float16)
    double.double_delay_engine(-1, 60000)
    double.double_delay_engine(39, 0)  # takes a workspace

    def workspace(autotune, limit):
        with jcc.options(autotune=autotune, workspace_limit=limit):
            jax.jit(lambda x, y: jcc.conv_backward_filter(x, y, kernel_shape=(3, 3, 16, 32)))(x, y)
        return double.double_last_workspace()

    assert workspace("fastest", 0) > 4096
    assert workspace("limited", 4096) <= 4096
    assert workspace("limited", 0) == 0


def test_a_failing_candidate_is_skipped():
    make_fastest(34)
    double.double_fail_engine(34, 5000)
    assert run() != 34


def test_all_candidates_fail(caplog):
    """The trials end without a winner, and what then runs says why it cannot."""
    double.double_fail_engine(-1, 5000)
    with caplog.at_level("INFO", "jax_cudnn_conv"), pytest.raises(FAILURE, match="EXECUTION_FAILED"):
        run()
    assert "no candidate ran" in caplog.text
    double.double_fail_engine(-1, 0)
    run()


def test_no_memory_for_trials(caplog, cache):
    module.set_host_memory(1000)
    with caplog.at_level("INFO", "jax_cudnn_conv"):
        run()
    assert "no memory for trials" in caplog.text
    assert not cache.exists()


def test_live_operands_are_left_alone():
    """Values are right in the very call that tunes (`run` checks), and the operands are what they were."""
    x, y = X.copy(), Y.copy()
    run()
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)


def test_engines_compiled_at_run_time_are_left_out(cache):
    run("fastest")
    with jcc.options(autotune="fastest"):
        kernel = jcc.explain(wgrad, X, Y, device="sm_90")[0].kernel
    assert "compiled" not in kernel.notes


CHILD = """
import sys, gpu_on_cpu
double = gpu_on_cpu.install()
double.double_delay_engine(-1, 30000)
double.double_delay_engine(int(sys.argv[1]), 0)
import jax, numpy as np, jax_cudnn_conv as jcc
x, y = np.ones((1, 8, 8, 16), np.float32), np.ones((1, 8, 8, 32), np.float32)
with jcc.options(autotune="limited"):
    dw = jax.jit(lambda x, y: jcc.conv_backward_filter(x, y, kernel_shape=(3, 3, 16, 32)))(x, y)
assert float(dw[1, 1, 0, 0]) == 64
print(double.double_last_engine(), double.double_executions())
"""


def test_a_second_process_uses_the_winner(cache):
    engine, executions = map(int, harness.python("-c", CHILD, 34).split())
    assert engine == 34
    assert executions > 10
    assert harness.python("-c", CHILD, 20).split() == ["34", "1"]  # no trial, though another is faster now


def test_a_stored_plan_that_no_longer_exists(cache):
    run()
    content = json.loads(cache.read_text())
    content["plans"] = dict.fromkeys(content["plans"], "eng999_k1=2")
    cache.write_text(json.dumps(content))
    forget()
    run()  # cuDNN's first recommendation


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b'{"format": "jax_cudnn_conv plans, 1", "plans": {"a"',
        b"\xff\xfe\x00",
        b"[]",
        b"3",
        b'{"plans": {}}',
    ]
    + [
        b'{"format": "another program\'s", "plans": {}}',
        b'{"format": "jax_cudnn_conv plans, 1", "plans": [1]}',
    ]
    + [b'{"format": "jax_cudnn_conv plans, 1", "plans": {"a": 3}}'],
)
def test_a_damaged_file_is_ignored(cache, damage):
    cache.parent.mkdir(exist_ok=True)
    cache.write_bytes(damage)
    with pytest.warns(RuntimeWarning, match=r"ignores the tuned plans in .*plans\.json: \w+"):
        run()
    assert len(json.loads(cache.read_text())["plans"]) == 1  # and replaced by a good one
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run()


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAX_CUDNN_CONV_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(RuntimeWarning) as told:
        run()
    texts = [str(w.message) for w in told]
    assert any("ignores the tuned plans" in text for text in texts)
    assert any("cannot keep the plans it tuned" in text for text in texts)


def test_many_writers_lose_nothing(cache):
    program = """
import sys
from jax_cudnn_conv import _winners
for k in range(25):
    _winners.keep(f"{sys.argv[1]} {k}", "eng0")
"""
    import subprocess
    import sys

    writers = [subprocess.Popen([sys.executable, "-c", program, str(seed)]) for seed in range(3)]
    assert [w.wait(120) for w in writers] == [0, 0, 0]
    assert len(json.loads(cache.read_text())["plans"]) == 75
