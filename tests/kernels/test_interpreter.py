import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed here"
)
def test_every_kernel_is_right_in_the_interpreter():
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this is the interpreter's run")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-k", "triton", "-p", "no:cacheprovider",
         str(Path(__file__).parent)],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
