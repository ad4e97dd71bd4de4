"""C21, C40: the same values under every instruction set that oneDNN treats differently, each in a process."""

import harness
import problems
import pytest

# Shapes with a history of wrong kernels, first of all strided 1x1 with few channels; groups; low precision.
F32 = (
    "n32i4o8_h32k1s2_w32k1s2",
    "g2_n1i16o8_w128k21p10",
    *problems.CURATED["library_faults"],
    *problems.CURATED["pointwise"],
    *problems.CURATED["depthwise"],
    *problems.CURATED["groups"][:4],
    *problems.CURATED["wide_kernels"],
    *problems.FEW,
)
NARROW = (
    "n2i8o16_h16k3p1_w16k3p1",
    "n1i2o1_h2k2_w2k2",
    *problems.FEW[1:4],
    "g4_n2i4o8_w9k3s2p1",
    "g16_n2i16o16_h7k5p2_w9k3p1d2",
)
TEXTS = (*F32, *(f"{dtype}_{text}" for dtype in ("bf16", "f16") for text in NARROW))


ISAS = ["AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX"]


@pytest.mark.parametrize("isa", ISAS)
def test_values(isa, onednn):
    """One after the other, each kernel that an instruction set selects."""
    best = onednn.info()["isa"]
    if ISAS.index(isa) > max(i for i, name in enumerate(ISAS) if best.startswith(name)):
        pytest.skip(f"this CPU stops at {best}")
    output = harness.python("child.py", "values", *TEXTS, ONEDNN_MAX_CPU_ISA=isa)
    assert f"'isa': '{isa}'" in output


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_c21_values_for_each_number_of_threads(threads, onednn):
    """Kernels split their work by the number of threads, also where there are fewer cores."""
    texts = (TEXTS[0], *problems.CURATED["library_faults"], *problems.CURATED["pointwise"])
    output = harness.python("child.py", "values", *texts, JAX_CUDNN_CONV_NUM_THREADS=str(threads))
    assert f"'threads': {threads}" in output
