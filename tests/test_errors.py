"""What a user can get wrong, and what is said about it: while tracing, with the same words everywhere."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_cudnn_conv as jcc

X, W, Y = (2, 8, 9, 4), (3, 3, 4, 6), (2, 8, 9, 6)  # a plain 2-D convolution, channels last

# id: function, operand shapes, keywords, exception, what its message must say: argument, value, form wanted.
CASES = {
    "strides zero": ("conv", X, W, {"strides": 0}, ValueError, ["strides", r"\b0\b", r"between 1"]),
    "strides negative": ("conv", X, W, {"strides": -1}, ValueError, ["strides", "-1", r"between 1"]),
    "strides negative on one axis": (
        "conv",
        X,
        W,
        {"strides": (1, -2)},
        ValueError,
        [r"strides\[1\]", "-2", "between 1"],
    ),
    "strides beyond 32 bits": (
        "conv",
        X,
        W,
        {"strides": 2**31},
        ValueError,
        ["strides", str(2**31), str(2**31 - 1)],
    ),
    "strides too few": (
        "conv",
        X,
        W,
        {"strides": [1]},
        ValueError,
        ["strides", r"\[1\]", "one for each", "2 spatial"],
    ),
    "strides too many": (
        "conv",
        X,
        W,
        {"strides": (1, 2, 3)},
        ValueError,
        ["strides", r"\(1, 2, 3\)", "2 spatial"],
    ),
    "strides float": ("conv", X, W, {"strides": 1.5}, TypeError, ["strides", "1.5", "integer"]),
    "strides float on one axis": (
        "conv",
        X,
        W,
        {"strides": (1, 2.0)},
        TypeError,
        [r"strides\[1\]", "2.0", "integer"],
    ),
    "strides string": (
        "conv",
        X,
        W,
        {"strides": "2"},
        (TypeError, ValueError),
        ["strides", "'2'", "integer"],
    ),
    "strides none": ("conv", X, W, {"strides": None}, TypeError, ["strides", "None", "integer"]),
    "strides bool": ("conv", X, W, {"strides": True}, TypeError, ["strides", "True", "integer"]),
    "dilation zero": ("conv", X, W, {"dilation": 0}, ValueError, ["dilation", r"\b0\b", "between 1"]),
    "dilation too few": ("conv", X, W, {"dilation": (2,)}, ValueError, ["dilation", r"\(2,\)", "2 spatial"]),
    "padding unknown": (
        "conv",
        X,
        W,
        {"padding": "FULL"},
        ValueError,
        ["padding", "'FULL'", "SAME.*VALID", "pair"],
    ),
    "padding too few": (
        "conv",
        X,
        W,
        {"padding": ((1, 1),)},
        ValueError,
        ["padding", r"\(\(1, 1\),\)", "2 spatial", "pair"],
    ),
    "padding triple": (
        "conv",
        X,
        W,
        {"padding": (1, (1, 2, 3))},
        ValueError,
        [r"padding\[1\]", r"\(1, 2, 3\)", "pair"],
    ),
    "padding float": (
        "conv",
        X,
        W,
        {"padding": (1, (1, 0.5))},
        TypeError,
        [r"padding\[1\]", "0.5", "integer"],
    ),
    "padding none": ("conv", X, W, {"padding": None}, TypeError, ["padding", "None", "SAME"]),
    "padding beyond 32 bits": ("conv", X, W, {"padding": 2**31}, ValueError, ["padding", str(2**31)]),
    "padding crops everything": (
        "conv",
        (1, 2, 3, 1),
        (2, 2, 1, 1),
        {"padding": ((5, 16), (-5, 1))},
        ValueError,
        ["padding", "-5, 1", r"\b3\b"],
    ),
    "groups zero": ("conv", X, W, {"groups": 0}, ValueError, ["groups", r"\b0\b", "between 1"]),
    "groups float": ("conv", X, W, {"groups": 2.0}, TypeError, ["groups", "2.0", "integer"]),
    "groups do not divide out": (
        "conv",
        X,
        (3, 3, 2, 5),
        {"groups": 2},
        ValueError,
        ["groups", r"\b2\b", r"\b5\b", "divide"],
    ),
    "groups do not divide in": (
        "conv",
        (2, 8, 9, 5),
        (3, 3, 2, 6),
        {"groups": 2},
        ValueError,
        ["x", r"\b5\b", r"\b4\b", "group"],
    ),
    "groups list": ("conv", X, W, {"groups": [2]}, TypeError, ["groups", r"\[2\]", "integer"]),
    "channels differ": (
        "conv",
        (1, 10, 3),
        (3, 5, 2),
        {},
        ValueError,
        ["x", "kernel", r"\b3\b", r"\b5\b", "channels"],
    ),
    "x unbatched": ("conv", (8, 9, 4), W, {}, ValueError, ["x", "kernel", r"\b3\b", r"\b4\b", "batch"]),
    "kernel of another rank": ("conv", X, (3, 4, 6), {}, ValueError, ["x", "kernel", r"\b4\b", r"\b3\b"]),
    "x of rank one": ("conv", (4,), (4,), {}, ValueError, ["x", r"\b1\b", "2"]),
    "kernel without taps": ("conv", X, (3, 0, 4, 6), {}, ValueError, ["kernel", r"\(3, 0, 4, 6\)"]),
    "dimension numbers two": (
        "conv",
        X,
        W,
        {"dimension_numbers": ("NHWC", "HWIO")},
        ValueError,
        ["dimension_numbers", r"\('NHWC', 'HWIO'\)", "three strings"],
    ),
    "dimension numbers letter": (
        "conv",
        X,
        W,
        {"dimension_numbers": ("NHWC", "HWIO", "NHXC")},
        ValueError,
        ["dimension_numbers", "NHXC", "three strings"],
    ),
    "dimension numbers repeated": (
        "conv",
        X,
        W,
        {"dimension_numbers": ("NHHC", "HHIO", "NHHC")},
        ValueError,
        ["dimension_numbers", "NHHC"],
    ),
    "dimension numbers short": (
        "conv",
        X,
        W,
        {"dimension_numbers": ("NWC", "WIO", "NWC")},
        ValueError,
        ["dimension_numbers", "NWC", r"\b4\b"],
    ),
    "bias length": (
        "conv",
        X,
        W,
        {"bias": np.zeros(4, np.float32)},
        ValueError,
        ["bias", r"\(4,\)", r"\(6,\)"],
    ),
    "bias rank": (
        "conv",
        X,
        W,
        {"bias": np.zeros((1, 6), np.float32)},
        ValueError,
        ["bias", r"\(1, 6\)", r"\(6,\)"],
    ),
    "activation unknown": (
        "conv",
        X,
        W,
        {"activation": "gelu"},
        ValueError,
        ["activation", "'gelu'", "'relu'"],
    ),
    "precision unknown": (
        "conv",
        X,
        W,
        {"precision": "most"},
        ValueError,
        ["precision", "'most'", "Precision"],
    ),
    "result narrower": (
        "conv",
        X,
        W,
        {"preferred_element_type": jnp.bfloat16},
        TypeError,
        ["preferred_element_type", "bfloat16", "float32"],
    ),
    "result of another kind": (
        "conv",
        X,
        W,
        {"preferred_element_type": jnp.int32},
        TypeError,
        ["preferred_element_type", "int32", "float32"],
    ),
    "transpose channels": (
        "conv_transpose",
        (1, 10, 3),
        (3, 2, 5),
        {},
        ValueError,
        ["x", "kernel", r"\b3\b", r"\b5\b", "channels"],
    ),
    "transpose groups": (
        "conv_transpose",
        Y,
        W,
        {"groups": 4},
        ValueError,
        ["groups", r"\b4\b", r"\b6\b", "divide"],
    ),
    "transpose beyond its extent": (
        "conv_transpose",
        (1, 14, 2),
        (3, 4, 2),
        {"padding": 9},
        ValueError,
        ["padding", r"\b9\b", "-2", r"\b14\b"],
    ),
    "transpose strides": (
        "conv_transpose",
        Y,
        W,
        {"strides": 0},
        ValueError,
        ["strides", r"\b0\b", "between 1"],
    ),
    "output_padding without a stride": (
        "conv_transpose",
        Y,
        W,
        {"padding": 1, "output_padding": 1},
        ValueError,
        ["output_padding", r"\b1\b", "between 0 and 0"],
    ),
    "output_padding negative": (
        "conv_transpose",
        Y,
        W,
        {"strides": 2, "output_padding": (0, -1)},
        ValueError,
        [r"output_padding\[1\]", "-1", "0"],
    ),
    "output_padding of the stride": (
        "conv_transpose",
        Y,
        W,
        {"strides": (2, 3), "padding": 1, "output_padding": (2, 2)},
        ValueError,
        [r"output_padding\[0\]", r"\b2\b", "between 0 and 1"],
    ),
    "output_padding too few": (
        "conv_transpose",
        Y,
        W,
        {"strides": 2, "output_padding": (1,)},
        ValueError,
        ["output_padding", r"\(1,\)", "2 spatial"],
    ),
    "output_padding float": (
        "conv_transpose",
        Y,
        W,
        {"strides": 2, "output_padding": 1.0},
        TypeError,
        ["output_padding", "1.0", "integer"],
    ),
    "output_shape as well": (
        "conv_transpose",
        Y,
        W,
        {"strides": 2, "output_padding": 1, "output_shape": (16, 18)},
        ValueError,
        ["output_padding", "output_shape", r"\b1\b", r"\(16, 18\)"],
    ),
    "output_shape out of reach": (
        "conv_transpose",
        Y,
        W,
        {"strides": 2, "padding": 1, "output_shape": (17, 17)},
        ValueError,
        ["output_shape", r"\(17, 17\)", r"\(15, 17\)", r"\(16, 18\)"],
    ),
    "output_shape out of reach of SAME": (
        "conv_transpose",
        Y,
        W,
        {"strides": 2, "padding": "SAME", "output_shape": (14, 17)},
        ValueError,
        ["output_shape", r"\(14, 17\)", "SAME", r"\(8, 9\)"],
    ),
    "output_shape whole": (
        "conv_transpose",
        Y,
        W,
        {"strides": 2, "output_shape": (2, 16, 18, 4)},
        ValueError,
        ["output_shape", r"\(2, 16, 18, 4\)", r"\b2 integers"],
    ),
    "input_shape short": (
        "conv_backward_data",
        Y,
        W,
        {"input_shape": X[1:]},
        ValueError,
        ["input_shape", r"\(8, 9, 4\)", r"\b4\b"],
    ),
    "input_shape features": (
        "conv_backward_data",
        Y,
        W,
        {"input_shape": (2, 8, 9, 5)},
        ValueError,
        ["input_shape", r"\(2, 8, 9, 5\)", r"\(2, 8, 9, 4\)"],
    ),
    "input_shape number": (
        "conv_backward_data",
        Y,
        W,
        {"input_shape": 8},
        TypeError,
        ["input_shape", r"\b8\b", "4 integers"],
    ),
    "input_shape batch": (
        "conv_backward_data",
        Y,
        W,
        {"input_shape": (3, 8, 9, 4)},
        ValueError,
        [r"\by\b", r"\(3, 8, 9, 6\)", r"\(2, 8, 9, 6\)"],
    ),
    "y of another extent": (
        "conv_backward_data",
        (2, 8, 8, 6),
        W,
        {"input_shape": X},
        ValueError,
        [r"\by\b", r"\(2, 8, 8, 6\)", r"\(2, 8, 9, 6\)"],
    ),
    "kernel_shape features": (
        "conv_backward_filter",
        X,
        Y,
        {"kernel_shape": (3, 3, 5, 6)},
        ValueError,
        ["kernel", r"\(3, 3, 5, 6\)", r"\b4\b", r"\b5\b"],
    ),
    "kernel_shape short": (
        "conv_backward_filter",
        X,
        Y,
        {"kernel_shape": (3, 4, 6)},
        ValueError,
        ["kernel", r"\b3\b", r"\b4\b"],
    ),
    "filter y of another extent": (
        "conv_backward_filter",
        X,
        (2, 8, 8, 6),
        {"kernel_shape": W},
        ValueError,
        [r"\by\b", r"\(2, 8, 8, 6\)", r"\(2, 8, 9, 6\)"],
    ),
}


def raised(call):
    """The exception of a call: its type and text."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None, ""


@pytest.mark.parametrize("case", CASES)
def test_errors(case):
    """Eagerly, under jit, under eval_shape and on each backend: one error, with what is wrong and wanted."""
    name, a, b, keywords, exception, wanted = CASES[case]
    f = functools.partial(getattr(jcc, name), **keywords)
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in (a, b)]
    arrays = [np.zeros(shape, np.float32) for shape in (a, b)]
    kind, text = raised(lambda: jax.eval_shape(f, *shapes))
    assert kind is not None, "no error"
    assert issubclass(kind, exception), (kind, text)
    for pattern in wanted:
        assert re.search(pattern, text), f"{pattern!r} is not in: {text}"
    assert len(text) < 400
    assert "\n" not in text
    assert "bug" not in text
    assert raised(lambda: f(*arrays)) == (kind, text)
    assert raised(lambda: jax.jit(f)(*arrays)) == (kind, text)
    with jcc.options(backend="xla"):
        assert raised(lambda: f(*arrays)) == (kind, text)
    with jcc.options(backend="native"):
        assert raised(lambda: f(*arrays)) == (kind, text)


OPERANDS = {
    "dtypes differ": (np.float32, np.float64, ["x", "kernel", "float32", "float64"]),
    "low precision beside f32": (jnp.bfloat16, np.float32, ["x", "kernel", "bfloat16", "float32"]),
    "bool": (bool, bool, ["x", "bool"]),
    "string": (lambda x: "image", np.float32, ["x", "str|image"]),
    "none": (np.float32, lambda w: None, ["kernel", "None"]),
}


@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@pytest.mark.parametrize("case", OPERANDS)
def test_operands(case, name):
    to_x, to_w, wanted = OPERANDS[case]
    x, w = np.zeros((1, 5, 2)), np.zeros((3, 2, 2))
    x, w = (a.astype(to) if isinstance(to, type) else to(a) for a, to in ((x, to_x), (w, to_w)))
    kind, text = raised(functools.partial(getattr(jcc, name), x, w))
    assert kind in (TypeError, ValueError), (kind, text)
    for pattern in wanted:
        assert re.search(pattern, text), f"{pattern!r} is not in: {text}"


def test_cotangent_of_another_dtype():
    x, y = np.zeros((1, 5, 2), np.float32), np.zeros((1, 5, 2))
    assert raised(lambda: jcc.conv_backward_filter(x, y, kernel_shape=(3, 2, 2)))[0] is TypeError
    assert (
        raised(lambda: jcc.conv_backward_data(y, np.zeros((3, 2, 2), np.float32), input_shape=(1, 5, 2)))[0]
        is TypeError
    )


@pytest.mark.parametrize(
    "argument", ["strides", "[strides]", "dilation", "[dilation]", "groups", "padding", "[padding]"]
)
def test_c35_a_traced_geometry_is_refused_by_name(argument):
    x, w, name = np.zeros((1, 5, 2), np.float32), np.zeros((3, 2, 2), np.float32), argument.strip("[]")

    def call(value):
        return jcc.conv_transpose(x, w, **{name: value if name == argument else [value]})

    kind, text = raised(lambda: jax.jit(call)(1))
    assert kind in (TypeError, ValueError), (kind, text)
    assert name in text
    assert re.search("static|known while tracing", text), text


def test_c34_shorthands_are_one_meaning():
    """An integer for all axes, one for each, or pairs."""
    x, w = np.ones(X, np.float32), np.ones(W, np.float32)
    for f, a in ((jcc.conv, x), (jcc.conv_transpose, np.ones(Y, np.float32))):
        expected = f(a, w, strides=(2, 2), padding=((1, 1), (1, 1)))
        for padding in (1, (1, 1), [1, 1], (1, (1, 1)), np.array([[1, 1], [1, 1]])):
            for strides in (2, [2, 2], np.array([2, 2]), np.int64(2)):
                assert (f(a, w, strides=strides, padding=padding) == expected).all()
    one, kernel = np.ones((1, 8, 4), np.float32), np.ones((3, 4, 6), np.float32)
    assert jcc.conv(one, kernel, padding=[(2, 0)]).shape == (1, 8, 6)
    assert (
        raised(lambda: jcc.conv(one, kernel, padding=(2, 0)))[0] is ValueError
    )  # two axes or one pair: not guessed


def test_options_name_their_values():
    kind, text = raised(lambda: jcc.options(backend="gpu").__enter__())
    assert kind is ValueError
    assert "backend" in text
    assert "'gpu'" in text
    assert "'native'" in text


def test_keywords_are_keyword_only():
    """Positional geometry would be read in an order that nobody remembers."""
    x, w = np.zeros(X, np.float32), np.zeros(W, np.float32)
    assert raised(lambda: jcc.conv(x, w, 2))[0] is TypeError
    assert raised(lambda: jcc.conv_transpose(x, w, 2))[0] is TypeError
    assert raised(lambda: jcc.conv(x, w, stride=2))[0] is TypeError
