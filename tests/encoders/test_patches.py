import numpy as np
import pytest
from PIL import Image

from foveate.encoders.patches import Patches
from foveate.pipeline.errors import ConfigError, ShapeError

pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def patches():
    return Patches(device="cpu")


def test_a_picture_has_a_vector_for_each_cell(patches):
    grey = np.random.default_rng(0)
    pictures = [
        Image.fromarray(grey.integers(0, 255, (90, side, 3), np.uint8)) for side in (90, 400)
    ]
    found = patches.encode(pictures)
    assert len(found) == 2
    assert found.vectors.shape[1] == patches.dim
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-3)
    for i, picture in enumerate(pictures):
        boxes = patches.boxes(picture)
        assert len(boxes) == len(found[i]) > 0
        assert (boxes >= 0).all()
        assert (boxes <= 1).all()
    assert len(patches.encode([])) == 0


def test_a_query_is_one_vector(patches):
    asked = patches.encode_queries(["a dog", "a red car"])
    assert asked.offsets.tolist() == [0, 1, 2]
    assert patches.query_spans("a dog").tolist() == [[0, 5]]
    assert len(patches.spans("a dog")) == 0


def test_texts_are_not_stored(patches):
    with pytest.raises(ShapeError, match="pictures"):
        patches.encode(["a dog"])
    with pytest.raises(ConfigError, match="onebit"):
        Patches(code="zip")
