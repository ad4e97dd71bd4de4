"""What a user may choose about how convolutions run."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import jax

_BACKENDS = ("auto", "native", "xla")


@dataclasses.dataclass(frozen=True)
class Options:
    """The choices in force: see :func:`options`."""

    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.backend not in _BACKENDS:
            raise ValueError(f"backend must be one of {_BACKENDS}; got {self.backend!r}")


def _from_environment() -> Options:
    return Options(backend=os.environ.get("JAX_CUDNN_CONV_BACKEND", "auto"))


# Part of the key of jit's caches: a function that was traced under other options is traced again.
_context = jax.make_user_context(_from_environment())


def current() -> Options:
    """The options in force in this thread."""
    return _context.value


@contextlib.contextmanager
def options(*, backend: str | None = None) -> Iterator[Options]:
    """Choose how the convolutions traced inside the ``with`` block run.

    Args:
      backend: ``"auto"`` (default) runs each convolution on the native library of its platform and on
        XLA where that lacks the case; ``"native"`` turns that fallback into an error while lowering,
        with the reason; ``"xla"`` uses XLA for all. None leaves the choice as it is.

    Yields:
      The options in force inside the block.

    Raises:
      ValueError: a value is not one of those above.

    The options are part of `jax.jit`'s cache key, are kept by the gradients of what was traced under
    them, and hold for the current thread. ``JAX_CUDNN_CONV_BACKEND`` sets the default of the process.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> with jcc.options(backend="xla"):
      ...     jcc.conv(jnp.ones((1, 4, 1)), jnp.ones((3, 1, 1))).ravel().tolist()
      [2.0, 3.0, 3.0, 2.0]
    """
    chosen = {"backend": backend}
    changes = {name: value for name, value in chosen.items() if value is not None}
    value = dataclasses.replace(current(), **changes)
    with _context(value):
        yield value
