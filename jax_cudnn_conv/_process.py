"""A child that was forked after JAX started its threads has none of them."""

import os

_user: int | None = None  # the process that first compiled a convolution


def mark_used() -> None:
    """Remember that JAX's threads run in this process."""
    global _user
    _user = _user or os.getpid()


def check_not_forked() -> None:
    """Raise in a child that could only wait for ever."""
    if _user is not None and _user != os.getpid():
        raise RuntimeError(
            "this process was forked after JAX had run in its parent, and JAX's threads do not exist here; "
            "start workers with multiprocessing's 'spawn' or 'forkserver' method, or fork before using JAX"
        )
