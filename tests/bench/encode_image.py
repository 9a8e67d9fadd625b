"""Pictures encoded per second by `efficientnet-lite` beside timm's own forward of the same weights.

Both start from the same decoded photos, in turns in one process: ours gives vectors, timm's side is
its usual preprocessing (resize, to float, normalise) and its features in batches of 32, without any
map to a text space, so the ratio is on the safe side.

    python tests/bench/encode_image.py --images 128 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder of photos; default: flickr8k_1k's")
    parser.add_argument("--images", type=int, default=128, help="how many of them")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turns")
    parser.add_argument("--size", default="lite0", choices=("lite0", "lite1", "lite2"))
    parser.add_argument("--dtype", default="fp32", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def read_photos(folder: Path | None, n: int) -> list[Any]:
    from PIL import Image

    if folder is None:
        beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
        folder = Path(os.environ.get("FOVEATE_EVAL_DATA", beside)) / "flickr8k_1k" / "images"
    return [Image.open(path).convert("RGB") for path in sorted(folder.glob("*.jpg"))[:n]]


class Timm:
    """timm's model with the package's weights, channels-last."""

    def __init__(self, size: str, weights: Path, side: int) -> None:
        import timm
        import torch

        self.model = timm.create_model(f"tf_efficientnet_{size}", pretrained=False).eval()
        state = torch.load(weights, map_location="cpu", weights_only=True)
        names = list(self.model.state_dict())
        self.model.load_state_dict(dict(zip(names, state.values(), strict=True)))
        self.model = self.model.to(memory_format=torch.channels_last)
        self.side = side

    def features(self, photos: list[Any], batch: int = 32) -> Any:
        import numpy as np
        import torch

        parts = []
        for first in range(0, len(photos), batch):
            scaled = [p.resize((self.side, self.side), 3) for p in photos[first : first + batch]]
            pixels = torch.from_numpy(np.stack([np.asarray(p) for p in scaled]))
            pixels = (pixels.permute(0, 3, 1, 2).float() - 127) / 128
            with torch.inference_mode():
                parts.append(self.model.forward_features(pixels))
        return torch.cat(parts)


def main() -> None:
    options = read_options()
    import torch

    from foveate.encoders.convnet import SIZES
    from foveate.encoders.efficientnet import EfficientNetLite

    photos = read_photos(options.data, options.images)
    encoder = EfficientNetLite(options.size, dtype=options.dtype)
    theirs = Timm(options.size, encoder._weights(options.size), SIZES[options.size][2])
    vectors = encoder.encode(photos[:9])
    # our head on their features: photos beyond MAX_ASPECT, which we pad, are rare
    same = (vectors * encoder._load()[0].pictures(theirs.features(photos[:9]))).sum(axis=1)
    if sorted(same)[len(same) // 2] < 0.999:
        raise SystemExit(f"vectors differ: cosines {same}")
    runs = {"foveate": encoder.encode, "timm": theirs.features}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(options.rounds):
        for name in sorted(runs, reverse=bool(number % 2)):
            wall, cpu = time.perf_counter(), time.process_time()
            runs[name](photos)
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    wall = {name: statistics.median(w for w, _ in times) for name, times in seconds.items()}
    cpu = {name: statistics.median(c for _, c in times) for name, times in seconds.items()}
    found = {
        "size": options.size,
        "images": len(photos),
        "images_per_s": {name: round(len(photos) / wall[name], 1) for name in runs},
        "images_per_cpu_s": {name: round(len(photos) / cpu[name], 1) for name in runs},
        "ratio": round(wall["timm"] / wall["foveate"], 2),
        "cpu_ratio": round(cpu["timm"] / cpu["foveate"], 2),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    if options.json:
        print(json.dumps(found))
    else:
        for key, value in found.items():
            print(f"{key}: {value}")
    sys.exit(0 if found["images"] else 1)


if __name__ == "__main__":
    main()
