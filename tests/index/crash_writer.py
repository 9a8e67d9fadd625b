"""Run by test_index_crash: index groups of sources in a loop and say what was committed."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

from foveate.index.disk import DiskIndex

spec = importlib.util.spec_from_file_location("maker", Path(__file__).with_name("conftest.py"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
maker = module.Maker()

path, seed, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
n_groups = int(sys.argv[4]) if len(sys.argv) > 4 else 10**9
rng = random.Random(seed)
index = DiskIndex.open(path)
for group in range(n_groups):
    with index.writer(timeout_s=60) as writer:
        for part in range(2):
            for number in range(rng.randint(1, 6)):
                where = f"/{name}/{rng.randint(0, 40)}.txt"
                if rng.random() < 0.2:
                    writer.remove(where)
                else:
                    text = f"common {name} {seed} {group} {part} {number}\nsecond line {group}"
                    maker.put(writer, where, text)
            writer.commit()
            state = {r.path: r.digest for r in writer.files_under(f"/{name}")}
            sys.stdout.write(f"{sorted(state.items())!r}\n")
            sys.stdout.flush()
