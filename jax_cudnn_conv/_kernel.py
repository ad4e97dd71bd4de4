"""What a native library is asked for, and what it answers: the same for each of them."""

from typing import Any, NamedTuple

import numpy as np

from jax_cudnn_conv._spec import ConvSpec


class Kernel(NamedTuple):
    """What runs a convolution, and why it is not the native library where it is XLA.

    Attributes:
      backend: ``"onednn"``, ``"cudnn"`` or ``"xla"``.
      name: oneDNN's implementation or cuDNN's engine and its settings.
      dtype: what it computes in.
      reason: why it is XLA where it is.
      workspace: bytes of scratch memory that cuDNN takes.
      notes: what cuDNN says of the engine, such as "tensor cores, not deterministic".
      even_pads: whether cuDNN gets even pads only, and x is padded with the rest beforehand.
    """

    backend: str
    name: str
    dtype: Any = None
    reason: str = ""
    workspace: int = 0
    notes: str = ""
    even_pads: bool = False

    def __str__(self) -> str:
        more = [self.reason, f"{self.workspace} bytes of workspace" if self.workspace else "", self.notes]
        text = ", ".join(filter(None, more))
        return f"{self.backend}:{self.name}" + (f" ({text})" if text else "")


def on_xla(reason: str, dtype: Any = None) -> Kernel:
    """XLA's own convolution, why, and what it computes in if not in the operands' dtype."""
    return Kernel("xla", "convolution", dtype, reason)


def geometry(spec: ConvSpec, allow_narrow: bool) -> dict[str, Any]:
    """What a library is told beside the shapes of the three tensors, which it reads from their buffers."""
    return {
        "x_dims": spec.x_dims,
        "w_dims": spec.w_dims,
        "y_dims": spec.y_dims,
        "strides": spec.strides,
        "dilation": spec.dilation,
        "pad_low": tuple(low for low, _ in spec.padding),
        "groups": spec.groups,
        "allow_narrow": allow_narrow,
    }


def attributes(values: dict[str, Any]) -> dict[str, Any]:
    """The same as attributes of a custom call."""
    dtypes = {tuple: np.int64, int: np.int64, bool: np.bool_}
    return {name: np.asarray(v, dtypes[type(v)])[()] for name, v in values.items()}


def is_known(*shapes: Any) -> bool:
    """Are all extents numbers, and none a symbolic dimension of `jax.export`?"""
    return all(isinstance(extent, int) for shape in shapes for extent in shape)
