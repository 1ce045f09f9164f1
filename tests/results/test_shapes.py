"""What callers of the Python API get wrong is named, in one line, also without shape checks."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.scores import Additive
from vision_attn.criteria.self_critical import fingerprint
from vision_attn.fast.models.recurrent import longest_first
from vision_attn.system.checks import require
from vision_attn.system.errors import UserError

Pair = tuple[Float[Tensor, "B"], int]

MISTAKES = """
import json, torch
from functools import partial
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.filterbank import Filterbank
from vision_attn.attention.location import ContentLocation
from vision_attn.attention.scores import Additive, General
from vision_attn.decode import beam_search
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.convnet import ConvNet
from vision_attn.models.whole_image import FullyConnected
from vision_attn.models.ram import RAM
from vision_attn.models.show_attend_tell import ShowAttendTell

torch.set_num_threads(1)
images = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
backbone = Backbone(name="squeezenet1_1", node="features.3", resolution=64)
convnet = ConvNet(resolution=64, region_size=8, width=16)
model = ShowAttendTell(9, 4, hidden_size=6, word_size=8, score=partial(Additive, attention_size=7))
regions, words = torch.randn(2, 5, 4), torch.ones(2, 1, 3, dtype=torch.long)
retina = Retina(size=4)
pyramid = retina.pyramid(torch.zeros(2, 1, 8, 8))
ram = RAM((1, 8, 8), 10, retina=partial(Retina, size=4))
query = torch.randn(2, 1, 6)
calls = {
    "float images": lambda: backbone(images.float()),
    "float images, trained encoder": lambda: convnet(images / 255),
    "no batch": lambda: backbone(images[0]),
    "height, width, channels": lambda: convnet(images.permute(0, 2, 3, 1)),
    "another resolution": lambda: backbone(images[..., :32, :32]),
    "wrong width": lambda: model(torch.randn(2, 5, 3), words),
    "wrong width in decoding": lambda: beam_search(model, torch.randn(2, 5, 3)),
    "regions of one image": lambda: beam_search(model, regions[0]),
    "words of one caption each": lambda: model(regions, words[:, 0]),
    "float words": lambda: model(regions, words.float()),
    "captions of other images": lambda: model(regions, words[:1]),
    "locations without rows": lambda: retina(pyramid, torch.zeros(2, 2)),
    "one digit": lambda: ram(torch.zeros(1, 8, 8)),
    "colour digits": lambda: ram(torch.zeros(2, 3, 8, 8)),
    "uint8 digits": lambda: ram(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)),
    "digits of another size": lambda: FullyConnected((1, 8, 8), 10)(torch.zeros(2, 1, 9, 9)),
    "unprojected keys": lambda: Additive(4, 6, attention_size=7)(query, regions),
    "unprojected keys, general": lambda: General(4, 6)(query, regions),
    "unprojected keys, location": lambda: ContentLocation(4, 6, attention_size=7, grid=(1, 5))(query, regions),
    "another canvas": lambda: (bank := Filterbank(6, (1, 8, 8))).read(torch.zeros(2, 1, 9, 9), bank.window(query)),
}
said = {}
for name, call in calls.items():
    try:
        call()
        said[name] = None
    except Exception as error:
        said[name] = [type(error).__name__, str(error)]
print(json.dumps(said))
"""


@pytest.mark.slow
def test_mistakes_in_python_are_named() -> None:
    environment = os.environ | {"VISION_ATTN_SHAPES": "0"}
    done = subprocess.run(
        [sys.executable, "-c", MISTAKES], capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environment
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name, error in said.items():
        assert error is not None, f"{name}: nothing was said"
        assert error[0] == "UserError" and " must be a tensor (" in error[1] and "\n" not in error[1], (name, error)
    assert said["float images"][1].startswith("images must be a tensor (B, 3, 64, 64) of uint8, but is (2, 3, 64, 64)")
    assert said["wrong width"][1].startswith("regions must be a tensor (B, L, 4) of float, but is (2, 5, 3)")
    assert "project(regions)" in said["unprojected keys"][1]


@pytest.mark.skipif(os.environ.get("VISION_ATTN_SHAPES", "1") == "0", reason="VISION_ATTN_SHAPES=0")
def test_tests_check_shapes_and_types() -> None:
    """Also where a function has no shape, and where one letter would be two sizes."""
    longest_first(torch.zeros(2, 3, 4, dtype=torch.int64))
    for wrong in (torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)):
        with pytest.raises(BeartypeCallHintParamViolation):
            longest_first(wrong)
    with pytest.raises(BeartypeCallHintParamViolation):
        fingerprint(3, [])
    with pytest.raises(BeartypeCallHintParamViolation):  # two images, and three
        Additive(4, 6, attention_size=7)(torch.zeros(2, 1, 6), torch.zeros(3, 5, 7))


def test_a_check_that_succeeded_is_repeated_where_a_shape_or_a_type_is_another() -> None:
    """Of the arguments, of what they hold, and of the result, where one letter is one size."""
    from tests.shapes import checked

    @checked(typechecker=beartype)
    def first(x: Float[Tensor, "B D"], more: Sequence[Float[Tensor, "D"]]) -> Pair:
        return returned[0]

    @checked(typechecker=beartype)
    def chosen(mode: Literal["a", "b"]) -> None: ...

    fine = torch.zeros(2, 3), [torch.zeros(3)]
    returned = [(torch.zeros(2), 1)]
    for _ in range(2):
        assert first(*fine) is returned[0] and first(fine[0], more=fine[1]) is returned[0]
    for wrong in ((fine[0], [torch.zeros(4)]), (torch.zeros(2, 3, 1), fine[1]), (fine[0].long(), fine[1])):
        with pytest.raises(BeartypeCallHintParamViolation, match=r"first\(\)"):
            first(*wrong)
    for result in ((torch.zeros(3), 1), (torch.zeros(2), 1.0), torch.zeros(2)):
        returned[0] = result
        with pytest.raises(BeartypeCallHintReturnViolation, match=r"first\(\)"):
            first(*fine)
    chosen("a")
    with pytest.raises(BeartypeCallHintParamViolation, match=r"chosen\(\)"):
        chosen("c")


def test_what_fits_is_accepted() -> None:
    require("regions", torch.zeros(2, 3, 4), "B L 4", "float", B=2)
    require("words", torch.zeros(2, 3, dtype=torch.int32), "B T", "integer")
    for kind, dtype in (("integer", torch.bool), ("float", torch.int64), ("uint8", torch.int8)):
        with pytest.raises(UserError, match=f"of {kind}, but is"):
            require("x", torch.zeros(1, dtype=dtype), "B", kind)
