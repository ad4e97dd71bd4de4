"""What a user may choose about how convolutions run."""

import contextlib
import dataclasses
import operator
import os
from collections.abc import Iterator

import jax

BACKENDS = ("auto", "native", "xla")
AUTOTUNE = ("off", "limited", "fastest")


@dataclasses.dataclass(frozen=True)
class Options:
    """The choices in force: see :func:`options`."""

    backend: str = "auto"
    autotune: str = "off"
    workspace_limit: int = 1 << 30
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"backend must be one of {BACKENDS}; got {self.backend!r}")
        if self.autotune not in AUTOTUNE:
            raise ValueError(f"autotune must be one of {AUTOTUNE}; got {self.autotune!r}")
        if not isinstance(self.deterministic, bool):
            raise TypeError(f"deterministic must be True or False; got {self.deterministic!r}")
        wanted = f"workspace_limit must be a number of bytes, 0 or more; got {self.workspace_limit!r}"
        if isinstance(self.workspace_limit, bool) or not hasattr(self.workspace_limit, "__index__"):
            raise TypeError(wanted)
        if not 0 <= operator.index(self.workspace_limit) < 2**63:
            raise ValueError(wanted)
        object.__setattr__(self, "workspace_limit", operator.index(self.workspace_limit))


def _from_environment() -> Options:
    """The defaults of the process, from JAX_CUDNN_CONV_BACKEND and so on."""

    def text(name: str, default: str) -> str:
        return os.environ.get(f"JAX_CUDNN_CONV_{name}", "").strip() or default

    limit, deterministic = text("WORKSPACE_LIMIT", str(1 << 30)), text("DETERMINISTIC", "0")
    if not limit.isdecimal():
        raise ValueError(
            f"JAX_CUDNN_CONV_WORKSPACE_LIMIT must be a number of bytes, 0 or more; got {limit!r}"
        )
    if deterministic not in ("0", "1"):
        raise ValueError(f"JAX_CUDNN_CONV_DETERMINISTIC must be 0 or 1; got {deterministic!r}")
    return Options(
        backend=text("BACKEND", "auto"),
        autotune=text("AUTOTUNE", "off"),
        workspace_limit=int(limit),
        deterministic=deterministic == "1",
    )


# Part of the key of jit's caches: a function that was traced under other options is traced again.
_context = jax.make_user_context(_from_environment())


def current() -> Options:
    """The options in force in this thread."""
    return _context.value


@contextlib.contextmanager
def options(
    *,
    backend: str | None = None,
    autotune: str | None = None,
    workspace_limit: int | None = None,
    deterministic: bool | None = None,
) -> Iterator[Options]:
    """Choose how the convolutions traced inside the ``with`` block run. None leaves a choice as it is.

    Args:
      backend: ``"auto"`` (default) runs each convolution on the native library of its platform and on
        XLA where that lacks the case; ``"native"`` turns that fallback into an error while lowering,
        with the reason; ``"xla"`` uses XLA for all.
      autotune: how cuDNN's plan is chosen. ``"off"`` (default) takes its first recommendation,
        ``"limited"`` the fastest by trial of those within ``workspace_limit``, ``"fastest"`` the fastest of
        all. Trials run before the program's first execution, on scratch memory; winners are kept on disk.
      workspace_limit: the most scratch memory, in bytes, that cuDNN may take in one call (default 1 GiB).
        Where less is free, the best plan without any is used.
      deterministic: leave out plans of cuDNN whose results may differ from run to run (default False).

    Yields:
      The options in force inside the block.

    Raises:
      ValueError, TypeError: a value is not one of those above.

    The last three matter on NVIDIA GPUs only: oneDNN's results are deterministic as they are. The options
    are part of `jax.jit`'s cache key, are kept by the gradients of what was traced under them, and hold
    for the current thread. ``JAX_CUDNN_CONV_BACKEND``, ``_AUTOTUNE``, ``_WORKSPACE_LIMIT`` and
    ``_DETERMINISTIC`` (0 or 1) set the defaults of the process.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> with jcc.options(backend="xla"):
      ...     jcc.conv(jnp.ones((1, 4, 1)), jnp.ones((3, 1, 1))).ravel().tolist()
      [2.0, 3.0, 3.0, 2.0]
    """
    chosen = {
        "backend": backend,
        "autotune": autotune,
        "workspace_limit": workspace_limit,
        "deterministic": deterministic,
    }
    changes = {name: value for name, value in chosen.items() if value is not None}
    value = dataclasses.replace(current(), **changes)  # type: ignore[arg-type]
    with _context(value):
        yield value
