"""The plans that won cuDNN's trials, kept on disk between processes.

One JSON file in the user's cache folder holds an object of texts: a key says the GPU, the version of
cuDNN, the problem and the options, its value names the plan. Readers never see half a file, since a new one
replaces it whole; writers take a lock, so that none loses what another has added.
"""

import fcntl
import json
import logging
import os
import tempfile
import threading
import warnings
from pathlib import Path

logger = logging.getLogger("jax_cudnn_conv")
_FORMAT = "jax_cudnn_conv plans, 1"
_lock = threading.Lock()
_known: dict[str, str] | None = None  # what this process has read or found


def file() -> Path:
    """``plans.json`` in JAX_CUDNN_CONV_CACHE_DIR, or in jax_cudnn_conv in the user's cache folder."""
    folder = os.environ.get("JAX_CUDNN_CONV_CACHE_DIR")
    if folder:
        return Path(folder) / "plans.json"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "jax_cudnn_conv" / "plans.json"


def find(key: str) -> str:
    """The name of the plan that won for ``key``; empty if none has."""
    global _known
    with _lock:
        if _known is None:
            _known = _read(file())
        return _known.get(key, "")


def keep(key: str, name: str) -> None:
    """Keep a winner, here and on disk; a folder that cannot be written to is no error."""
    global _known
    with _lock:
        _known = (_known or {}) | {key: name}
        try:
            _add(file(), key, name)
        except OSError as error:
            warnings.warn(
                f"jax_cudnn_conv cannot keep the plans it tuned: {error}", RuntimeWarning, stacklevel=2
            )


def log(message: str) -> None:
    """Report a trial."""
    logger.info("%s", message)


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        plans = content["plans"]
        if not all(isinstance(text, str) for pair in plans.items() for text in pair):
            raise ValueError("not all of its plans are texts")
        return plans
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        warnings.warn(
            f"jax_cudnn_conv ignores the tuned plans in {path}: {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return {}


def _add(path: Path, key: str, name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = {"format": _FORMAT, "plans": _read(path) | {key: name}}
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with open(descriptor, "w", encoding="utf-8") as stream:
                json.dump(content, stream, indent=1, sort_keys=True)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
