"""JAX primitives for convolution and transposed convolution, on oneDNN and cuDNN.

The public names are those below; see :func:`conv` and :func:`conv_transpose` first.
"""

import importlib
from types import ModuleType

from jax_cudnn_conv import _lowering as _lowering
from jax_cudnn_conv import lax as lax
from jax_cudnn_conv._api import conv as conv
from jax_cudnn_conv._api import conv_backward_data as conv_backward_data
from jax_cudnn_conv._api import conv_backward_filter as conv_backward_filter
from jax_cudnn_conv._api import conv_transpose as conv_transpose
from jax_cudnn_conv._config import show_config as show_config
from jax_cudnn_conv._targets import CUDNN_TARGETS as _CUDNN_TARGETS
from jax_cudnn_conv._targets import ONEDNN_TARGETS as _ONEDNN_TARGETS
from jax_cudnn_conv.explain import Explanation as Explanation
from jax_cudnn_conv.explain import explain as explain
from jax_cudnn_conv.options import options as options
from jax_cudnn_conv.patch import patch_jax as patch_jax
from jax_cudnn_conv.patch import unpatch_jax as unpatch_jax

__version__ = "0.1.0"

#: The names of the custom calls in compiled programs. `jax.export.export` wants each of them allowed, as
#: ``jax.export.DisabledSafetyCheck.custom_call(name)``, and the package imported where the result is loaded.
CUSTOM_CALL_TARGETS = (*_ONEDNN_TARGETS.values(), *_CUDNN_TARGETS.values())


def __getattr__(name: str) -> ModuleType:
    if name in ("linen", "nnx"):  # at first use, as they import flax
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
