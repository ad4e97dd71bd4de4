"""From what users may write to what the primitives take. Every user error is raised here."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import export, lax

from jax_cudnn_conv._spec import Ints, Pads

PaddingLike: TypeAlias = str | int | Sequence[int | tuple[int, int]]
DimensionNumbers: TypeAlias = tuple[str, str, str] | lax.ConvDimensionNumbers

_LARGEST = 2**31 - 1  # oneDNN's and cuDNN's descriptors hold strides, pads and dilations as int32
_STRINGS = ("SAME", "SAME_LOWER", "VALID")
_SPATIAL = {0: "", 1: "W", 2: "HW", 3: "DHW"}


def array(name: str, value: Any) -> jax.Array:
    """An array of numbers, or an error that names the argument."""
    try:
        a = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array; got {type(value).__name__}") from error
    if a.dtype == jnp.bool_:
        raise TypeError(f"{name} must be an array of numbers; got dtype bool")
    return a


def integer(name: str, value: Any, low: int, high: int = _LARGEST) -> int:
    """A static integer within [low, high]."""
    number = _index(value)
    if number is None:
        raise TypeError(f"{name} must be a static integer; got {value!r}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be between {low} and {high}; got {number}")
    return number


def _index(value: Any) -> int | None:
    """The value as an int, None if it is none (a float, a sequence, a traced value)."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def per_axis(name: str, value: Any, rank: int, low: int = 1) -> Ints:
    """``strides``, ``dilation`` and the like: one integer for all spatial axes or one for each."""
    if _index(value) is not None:
        return (integer(name, value, low),) * rank
    entries = _entries(name, value, rank, "an integer or one for each")
    return tuple(integer(f"{name}[{k}]", entry, low) for k, entry in enumerate(entries))


def shape(name: str, value: Any, ndim: int) -> tuple[Any, ...]:
    """The extents of an array of ``ndim`` axes."""
    try:
        extents = list(value)
    except TypeError as error:
        raise TypeError(f"{name} must be {ndim} integers; got {value!r}") from error
    if len(extents) != ndim:
        raise ValueError(f"{name} must be {ndim} integers; got {len(extents)}: {value!r}")
    return tuple(
        e if export.is_symbolic_dim(e) else integer(f"{name}[{k}]", e, 0, 2**62)
        for k, e in enumerate(extents)
    )


def _entries(name: str, value: Any, rank: int, wanted: str) -> list:
    wanted = f"{name} must be {wanted} of the {rank} spatial axes"
    if isinstance(value, (str, bytes, dict)):
        raise ValueError(f"{wanted}; got {value!r}")
    try:
        entries = list(value)
    except TypeError as error:
        raise TypeError(f"{wanted}, known while tracing; got {value!r}") from error
    if len(entries) != rank:
        raise ValueError(f"{wanted}; got {len(entries)}: {value!r}")
    return entries


def padding(value: PaddingLike, rank: int) -> str | Pads:
    """The upper-case name of a padding, or one (low, high) pair per spatial axis."""
    wanted = f"one of {_STRINGS}, an integer, or an integer or a (low, high) pair for each"
    if isinstance(value, str):
        if value.upper() not in _STRINGS:
            raise ValueError(f"padding must be {wanted} of the {rank} spatial axes; got {value!r}")
        return value.upper()
    entries = [value] * rank if _index(value) is not None else _entries("padding", value, rank, wanted)
    pads = []
    for k, entry in enumerate(entries):
        wanted = f"padding[{k}] must be a static integer or a (low, high) pair of them"
        try:
            pair = [entry, entry] if _index(entry) is not None else list(entry)
        except TypeError as error:
            raise TypeError(f"{wanted}; got {entry!r}") from error
        if isinstance(entry, str) or len(pair) != 2:
            raise ValueError(f"{wanted}; got {entry!r}")
        low, high = (integer(f"padding[{k}]", p, -_LARGEST) for p in pair)
        pads.append((low, high))
    return tuple(pads)


def dimension_numbers(value: DimensionNumbers | None, **ndims: int) -> tuple:
    """Positions of the logical axes of x, kernel and y, as in `lax.conv_dimension_numbers`.

    ``ndims``: the number of axes of the two arguments that must agree, by the argument's name.
    """
    (first, ndim), (second, other) = ndims.items()
    if ndim != other:
        raise ValueError(
            f"{first} and {second} must have as many axes as each other (add a batch axis to an unbatched "
            f"{first}); got {ndim} and {other}"
        )
    rank = ndim - 2
    if rank < 0:
        raise ValueError(f"{first} and {second} must have at least 2 axes; got {ndim}")
    if isinstance(value, lax.ConvDimensionNumbers):
        return tuple(map(tuple, value))
    if value is None:
        default = _SPATIAL.get(rank, "".join(map(chr, range(ord("0"), ord("0") + rank))))
        value = (f"N{default}C", f"{default}IO", f"N{default}C")
    wanted = "dimension_numbers must be three strings such as ('NHWC', 'HWIO', 'NHWC')"
    if not (isinstance(value, (tuple, list)) and len(value) == 3 and all(isinstance(s, str) for s in value)):
        raise ValueError(f"{wanted}; got {value!r}")
    spatial = [c for c in value[1] if c not in "OI"]
    for string, letters in zip(value, ("NC", "OI", "NC"), strict=True):
        if len(set(string)) != ndim or sorted(string) != sorted([*letters, *spatial]):
            raise ValueError(
                f"{wanted}, each with one letter for every one of the {ndim} axes: {letters!r} and the "
                f"kernel's spatial letters; got {string!r} in {tuple(value)!r}"
            )
    return tuple(
        tuple(string.index(c) for c in [*letters, *spatial])
        for string, letters in zip(value, ("NC", "OI", "NC"), strict=True)
    )


def precision(value: Any) -> Any:
    """None, a pair of `lax.Precision`, or a `lax.DotAlgorithmPreset`; None reads JAX's default."""
    if value is None:
        value = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        if value is None:
            return None
    if isinstance(value, lax.DotAlgorithmPreset):
        return value
    if isinstance(value, str) and value in lax.DotAlgorithmPreset.__members__:
        return lax.DotAlgorithmPreset[value]
    pair = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)
    try:
        return tuple(lax.Precision(p) for p in pair)
    except ValueError as error:
        raise ValueError(
            "precision must be None, a lax.Precision or its name, a pair of those, or a "
            f"lax.DotAlgorithmPreset; got {value!r}"
        ) from error


def result_dtype(preferred: Any, **operands: jax.Array) -> Any:
    """The dtype of the result: the operands' (equal) dtype, or ``preferred_element_type``."""
    (first, x), (second, other) = operands.items()
    if x.dtype != other.dtype:
        raise TypeError(f"{first} and {second} must have the same dtype; got {x.dtype} and {other.dtype}")
    if preferred is None:
        return x.dtype
    preferred = jax.dtypes.canonicalize_dtype(preferred)
    if not (_accumulates(x.dtype, preferred) and preferred.itemsize >= x.dtype.itemsize):
        raise TypeError(
            f"preferred_element_type must be a dtype that sums of {x.dtype} products fit: of the same "
            f"kind and signedness, or floating point for integers, and not narrower; got {preferred}"
        )
    return preferred


def _accumulates(dtype: Any, wide: Any) -> bool:
    kinds = (jnp.signedinteger, jnp.unsignedinteger, jnp.floating, jnp.complexfloating)
    if jnp.issubdtype(dtype, jnp.integer) and jnp.issubdtype(wide, jnp.floating):
        return True
    return any(jnp.issubdtype(dtype, kind) and jnp.issubdtype(wide, kind) for kind in kinds)


def bias(value: Any, features: int, dtype: Any) -> jax.Array:
    """The bias, in the result's dtype."""
    b = array("bias", value)
    if b.shape != (features,):
        raise ValueError(
            f"bias must have shape ({features},), one entry per output feature; got shape {b.shape}"
        )
    return b.astype(dtype)


def activation(value: str | None) -> str | None:
    """The name of the activation."""
    if value not in (None, "relu"):
        raise ValueError(f"activation must be None or 'relu'; got {value!r}")
    return value
