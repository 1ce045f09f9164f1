"""The place test of every kind of model that `look` takes, and folders of transformers with odd values in each key."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests import pretend
from tests.explain.test_image_tokens import blip2, git
from tests.explain.test_look import blip, clip, llava, saved, vit
from tests.kinds import KINDS, check
from vision_attn.explain.libraries.opening import open_model
from vision_attn.explain.look import look
from vision_attn.system.errors import UserError
from vision_attn.tasks.pretrained import PretrainedCaptioning, PretrainedSettings

pytestmark = pytest.mark.chaos

ODD: list[Any] = [
    None, 0, -1, 3, "text", "", [], {}, [{}], {"a": 1}, True, 1.5, ["a", None], {"0": {"b": [1]}}, [[1]],
]  # fmt: skip
MORE = ("auto_map", "architectures", "id2label", "label2id", "dtype", "num_beams", "max_length", "eos_token_id")
"""Keys of config.json that may be missing."""


@pytest.mark.parametrize("name", KINDS)
def test_maps_change_where_the_image_does(name: str) -> None:
    check(KINDS[name])


def keys(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield (*path, key)
        yield from keys(value, (*path, key))


@pytest.mark.parametrize("make", [vit, clip, blip, llava, git, blip2], ids=lambda make: make.__name__)
def test_odd_values_of_any_key_are_one_line_or_harmless(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend.short_captions(monkeypatch, 3)
    name, picture = saved(tmp_path / "model", make), Image.effect_noise((64, 64), 60).convert("RGB")
    cases = []
    for file in sorted((tmp_path / "model").glob("*config.json")):
        tree = json.loads(file.read_text())
        more = [(key,) for key in MORE] if file.name == "config.json" else []
        cases += [(file, path, value) for path in [*keys(tree), *more] for value in ODD]
    refused = 0
    for file, path, value in random.Random(0).sample(cases, 60):
        before = file.read_text()
        whole = tree = json.loads(before)
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value
        file.write_text(json.dumps(whole))
        try:
            model = open_model(name)
            if model.kind == "captioner":
                PretrainedCaptioning(model, PretrainedSettings(max_words=3)).describe([picture])
            look(model, picture, texts=["a cat"] if model.kind == "matcher" else ())
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000, (file.name, path, value)
            refused += 1
        file.write_text(before)
    assert refused > 0
