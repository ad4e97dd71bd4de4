"""The recipes of docs/porting.md against what the other libraries compute.

The Python blocks of the page are executed here, so the page cannot differ from what is tested. All data are
small integers: float32 sums are exact, whatever their order.
"""

import importlib
import inspect
import warnings

import harness
import numpy as np
import pytest
import record_porting
from jax import lax

LIBRARIES = record_porting.load()
CASES = [(library, name) for library, entry in LIBRARIES.items() for name in entry["cases"]]
HAS_CONSISTENT_PADDING = "use_consistent_padding" in inspect.signature(lax.conv_transpose).parameters


@pytest.fixture(scope="module")
def recipes():
    """The names that the page's Python blocks define."""
    return harness.run_page("docs/porting.md")


def get(library, name):
    case = LIBRARIES[library]["cases"][name]
    return case, np.array(case["values"], np.float32).reshape(case["shape"])


@pytest.mark.parametrize(("library", "name"), CASES)
def test_recipe(recipes, library, name):
    """Each recipe gives what the library gave."""
    case, expected = get(library, name)
    result = recipes[case["recipe"]](**record_porting.draw(case["shapes"]), **case["arguments"])
    harness.assert_equal(result, expected)


def test_every_recipe_has_a_case(recipes):
    helpers = {"channels_first", "keras_layouts", "tf_geometry", "tf_merged", "as_transposed"}
    functions = {name for name, value in recipes.items() if inspect.isfunction(value)}
    assert functions - helpers == {get(*case)[0]["recipe"] for case in CASES}


@pytest.mark.parametrize("library", ["jax", "flax", "torch", "keras"])
def test_record(library):
    """The libraries that are installed give today what was recorded."""
    if library == "keras":
        record_porting.select_keras_backend()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other libraries' own
        try:
            importlib.import_module(library)
        except ImportError as error:
            pytest.skip(f"compares with an optional library: {error}")
        for name in LIBRARIES[library]["cases"]:
            case, expected = get(library, name)
            if HAS_CONSISTENT_PADDING or "use_consistent_padding" not in case["arguments"]:
                harness.assert_equal(record_porting.compute(library, case), expected, name)


def test_mirrored_kernel(recipes):
    """C04: one channel, `[1, 0]` with `[1, 2, 3]`, stride 2."""
    x, w = np.float32([1, 0]).reshape(1, 2, 1), np.float32([1, 2, 3]).reshape(3, 1, 1)
    ours = recipes["keras_conv_transpose"](x, w, strides=2)
    theirs = recipes["lax_conv_transpose"](x, w, (2,), "VALID")
    assert (ours.ravel().tolist(), theirs.ravel().tolist()) == ([1, 2, 3, 0, 0], [3, 2, 1, 0, 0])


@pytest.mark.parametrize(("padding", "extent", "lax_extent"), [(0, 16, 10), (1, 14, 12)])
def test_explicit_padding(recipes, padding, extent, lax_extent):
    """C03: the same numbers in PyTorch and in lax, four elements, K = s = 4."""
    x, w = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 4), np.float32)
    assert recipes["torch_conv_transpose"](x, w, stride=4, padding=padding).shape == (1, 1, extent)
    result = recipes["lax_conv_transpose"](x, w, (4,), [(padding, padding)], None, ("NCW", "OIW", "NCW"))
    assert result.shape == (1, 1, lax_extent)


def test_swapped_features(recipes):
    """C05: a weight for other channels is an error that names both numbers."""
    conv_transpose = recipes["torch_conv_transpose"]
    x, w = np.ones((1, 2, 3), np.float32), np.ones((2, 3, 3), np.float32)
    assert conv_transpose(x, w, stride=2, padding=1, output_padding=1).shape == (1, 3, 6)
    with pytest.raises(ValueError, match=r"x must have 3 channels.*got 2 "):
        conv_transpose(x, w.swapaxes(0, 1), stride=2, padding=1, output_padding=1)


def test_odd_unit_of_same(recipes):
    """C09: three ways to six elements that differ by where the odd pad is."""
    x, w = np.float32([1, 2, 3]), np.float32([1, 2, 3])
    same = recipes["keras_conv_transpose"](
        x.reshape(1, -1, 1), w.reshape(-1, 1, 1), strides=2, padding="same"
    )
    x, w = x.reshape(1, 1, -1), w.reshape(1, 1, -1)
    torch = recipes["torch_conv_transpose"](x, w, stride=2, padding=1, output_padding=1)
    mxnet = recipes["mxnet_deconvolution"](x, w, stride=(2,), target_shape=(6,))
    assert same.ravel().tolist() == [1, 2, 5, 4, 9, 6]
    assert torch.ravel().tolist() == mxnet.ravel().tolist() == [2, 5, 4, 9, 6, 9]
