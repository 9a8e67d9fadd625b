"""Run by test_tokens: index, change and remove sources with token vectors until it is killed."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

from foveate.index.disk import DiskIndex


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


maker, put = load("conftest").Maker(), load("test_tokens").put
rng = random.Random(int(sys.argv[2]))
index = DiskIndex.open(sys.argv[1])
for group in range(10**9):
    with index.writer(timeout_s=60) as writer:
        for number in range(rng.randint(1, 6)):
            path = f"/{rng.randint(0, 30)}"
            if rng.random() < 0.2:
                writer.remove(path)
            else:
                put(writer, maker, path, f"common {group} {number}\nmute\nsecond common {group}")
        if rng.random() < 0.3:
            writer.compact()
    sys.stdout.write(f"{group}\n")
    sys.stdout.flush()
