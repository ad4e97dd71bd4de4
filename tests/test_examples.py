"""The examples in small: each exits with 0, prints the time of both, and writes its picture."""

import re

import harness
import pytest

EXAMPLES = harness.TESTS.parent / "examples"
PACKAGES = {  # what each needs besides of the package
    "demo": ("optax", "sklearn", "tqdm", "PIL"),
    "per_example_gradients": ("optax", "sklearn", "PIL"),
    "resnet_patch": ("flax", "optax", "sklearn", "PIL"),
    "unet_nnx": ("flax", "optax", "sklearn", "PIL"),
    "wavenet": ("optax", "pywt", "PIL"),
}


def test_all_are_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} - {"common"} == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_example(name, tmp_path, native_missing):
    if native_missing:
        pytest.skip(native_missing)
    for package in PACKAGES[name]:
        pytest.importorskip(package, reason=f"{name}.py needs it: pip install '.[examples]'")
    from PIL import Image

    picture = tmp_path / "picture.png"
    text = harness.python(EXAMPLES / f"{name}.py", "--quick", "--output", picture)
    for side in ("jax_cudnn_conv", "XLA's convolutions"):
        assert re.search(rf"^  {side} +[0-9.]+ ms", text, re.M), text
    with Image.open(picture) as image:
        assert all(200 <= extent <= 2000 for extent in image.size)
        assert len(image.getcolors(2**24)) > 10  # something is drawn
