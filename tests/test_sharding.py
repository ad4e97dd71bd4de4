"""Arrays that are split over devices, in child processes with four virtual CPU devices."""

import harness
import pytest


@pytest.mark.parametrize("case", ["sharding", "explicit_mesh"])
def test_c46_no_silent_gather(case):
    """A bare custom call would make XLA gather a split batch on every device."""
    harness.python("child.py", case)
