from collections.abc import Sequence
from typing import Any

def targets() -> dict[str, Any]: ...
def describe(
    result: str,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    x_dims: Sequence[int],
    w_dims: Sequence[int],
    y_dims: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    pad_low: Sequence[int],
    groups: int,
    allow_bf16: bool,
) -> tuple[str, str]: ...
def info() -> dict[str, Any]: ...
def ffi_api_version() -> tuple[int, int]: ...
def plan_cache_info() -> dict[str, int]: ...
def set_plan_cache_capacity(capacity: int) -> None: ...
