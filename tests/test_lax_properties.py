"""Random calls of `jcc.lax` against the oracle, and which primitive each is.

A hundred run with the other tests; 5,000 with `python -m pytest -m sweep --hypothesis-profile=sweep`.
With `-s` each prints how many calls went to which primitive, None being XLA.
"""

from collections import Counter

import hypothesis
import jax
import jax.numpy as jnp
import lax_calls
import pytest
from jax import lax

import jax_cudnn_conv as jcc


def searched(strategy, check, examples):
    """Run `check` on random calls; how often each primitive (or None, XLA) had one, for those it returns."""
    counts = Counter()

    @hypothesis.settings(max_examples=examples)
    @hypothesis.given(strategy)
    def search(call):
        if counts.total() % 250 == 249:
            jax.clear_caches()
        counts.update(check(call))

    search()
    print(dict(counts))
    return counts


def check_value_and_derivatives(call):
    """A call that stays JAX's has JAX's derivatives, in some of which XLA aborts (docs/lax.md)."""
    primitive = lax_calls.chosen(call)
    check = lax_calls.check if primitive else lax_calls.check_value
    check(call, jcc.lax.conv_general_dilated)
    return [primitive]


def test_generated_calls():
    counts = searched(lax_calls.calls(), check_value_and_derivatives, 100)
    assert all(counts[name] for name in ("conv_fwd", "conv_dgrad", "conv_wgrad", None)), counts


@pytest.mark.sweep
def test_sweep_of_calls():
    searched(lax_calls.calls(), check_value_and_derivatives, 5_000)


def test_what_jax_differentiates_reaches_the_primitives():
    """Of the convolutions in value and gradients of ordinary ones at least 95 % are a primitive."""

    def check(call):
        def loss(lhs, rhs):
            return jnp.sum(lax.conv_general_dilated(lhs, rhs, **call.keywords) ** 2)

        return map(
            lax_calls.of_equation,
            lax_calls.convolutions(jax.value_and_grad(loss, (0, 1)), *lax_calls.abstract(call)),
        )

    counts = searched(lax_calls.calls(ordinary=True), check, 300)
    assert counts.total() >= 3 * 300
    assert counts[None] <= 0.05 * counts.total(), counts
