"""Maps lie where they are drawn: of each kind of model, of masked, random and resampled images; or they are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests import pretend, slow
from tests.architectures import VISION
from tests.explain.test_look import NAMED, WORDS, clip, saved, vit
from tests.kinds import CAPTIONED, KINDS, changes, check, right, squares, table
from tests.pretrained import MARKS, pretrained  # noqa: F401
from vision_attn.commands import main
from vision_attn.explain.explained_models import AnswerSubject
from vision_attn.explain.libraries.opening import ImageReader, OpenedModel, open_model
from vision_attn.explain.look import look
from vision_attn.explain.map_placement import in_place, marked_pictures
from vision_attn.explain.recorded_answers import recorded
from vision_attn.explain.tokens import PatchGrid, known_grid
from vision_attn.system.errors import UserError
from vision_attn.tasks.pretrained import PretrainedCaptioning, PretrainedSettings

DOCUMENT = Path(__file__).parents[2] / "docs" / "look.md"
QUICK = [name for name, kind in KINDS.items() if kind.quick]


@pytest.mark.parametrize("name", slow.after(1, QUICK))
def test_maps_change_where_the_image_does(name: str) -> None:
    """The other kinds are tested by `make chaos`."""
    check(KINDS[name])


def test_the_table_of_the_documents_is_that_of_the_kinds() -> None:
    assert table() in DOCUMENT.read_text(), "write what tests.kinds.table() returns into docs/look.md"


@pytest.mark.parametrize("kind", slow.after(1, CAPTIONED))
def test_words_of_captioners_look_where_the_image_changes(
    kind: str,
    pretrained: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend.short_captions(monkeypatch, 2)
    model, marks = open_model(pretrained(kind)), len(MARKS) * (kind == "SmolVLM")
    for part in (model.module, *(getattr(model.module, name, None) for name in ("text_decoder", "language_model"))):
        if getattr(part, "generation_config", None) is not None:
            part.generation_config.suppress_tokens = [*range(5), *range(len(WORDS), len(WORDS) + marks)]
    for name, weight in model.module.named_parameters():
        if ("vision" in name or name.startswith("encoder")) and (
            "attn" in name or "attention" in name
        ):  # else it mixes the places of 4 x 4 patches
            weight.data *= 0.1
    found: Tensor | float = 0.0
    for seed in range(2):  # the first word, in the first layer, whose query does not depend on the image
        seen = [look(model, picture) for picture in squares(seed=seed)]
        found = found + changes([one.layers[0][0] for one in seen], seen[0].extent)
    assert right(found) >= 6


def test_texts_match_where_the_image_changes(tmp_path: Path) -> None:
    model = open_model(saved(tmp_path / "model", clip))
    for name, weight in model.module.named_parameters():
        if "attn" in name and weight.dim() > 1:  # or all tokens are attended to alike
            nn.init.normal_(weight, std=0.2)
    for method in ("attention", "rollout", "relevance"):
        seen = [look(model, picture, texts=["a cat", "the dog"], method=method) for picture in squares()]
        assert right(changes([one.alpha for one in seen], seen[0].extent)) >= 6, method


def idefics2(hf: Any) -> Any:
    """Its words read 4 latents, as many as a quarter of the patches."""
    text = hf.MistralConfig(**NAMED | {"vocab_size": len(WORDS) + 2}, num_key_value_heads=2, head_dim=8)
    perceiver = {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2, "resampler_head_dim": 8,
                 "num_key_value_heads": 2, "hidden_size": 32}  # fmt: skip
    config = hf.Idefics2Config(
        vision_config=VISION, perceiver_config=perceiver, text_config=text.to_dict(), image_token_id=3
    )

    def processor(hf: Any, words: Any) -> Any:
        size = {"longest_edge": 32, "shortest_edge": 32}
        marks = {"image_token": "<image>", "image_boundary_token": "<fake>", "end_of_utterance_token": "<end>"}
        named = {f"{name}_token": getattr(words, f"{name}_token") for name in ("pad", "unk", "bos", "eos")}
        words = hf.PreTrainedTokenizerFast(
            tokenizer_object=words.backend_tokenizer, extra_special_tokens=marks, **named
        )
        images = hf.Idefics2ImageProcessor(do_image_splitting=False, size=size)
        return hf.Idefics2Processor(images, words, image_seq_len=4)

    return hf.Idefics2ForConditionalGeneration(config), processor


def test_latents_have_no_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = open_model(saved(tmp_path / "model", idefics2))
    model.module.generation_config.suppress_tokens = [0, 1, 2, 3, 4]
    pictures = [Image.effect_noise(size, 60).convert("RGB") for size in ((40, 40), (80, 20), (20, 80))]
    described = PretrainedCaptioning(model, PretrainedSettings(max_words=3)).describe(pictures)
    assert all(one.words and one.alpha is None for one in described)
    assert caplog.text.count("captions have no maps: the tokens of the image") == 1
    with pytest.raises(UserError, match="do not change where the image does .latents of a resampler"):
        look(model, pictures[0])


@pytest.mark.parametrize("of_pretraining", [False, True])
def test_a_masked_autoencoder_sees_all_patches_in_their_order(of_pretraining: bool, tmp_path: Path) -> None:
    def make(hf: Any) -> Any:
        sizes = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
        config = hf.ViTMAEConfig(**VISION | {"image_size": 64}, **sizes)
        kind = hf.ViTMAEForPreTraining if of_pretraining else hf.ViTMAEModel
        return kind(config), lambda hf, _: hf.ViTImageProcessor(size={"height": 64, "width": 64})

    model, pictures = open_model(saved(tmp_path / "model", make)), squares()
    first, again = look(model, pictures[0]), look(model, pictures[0])
    assert first.alpha.shape == (1, 8, 8) and first.layers.shape[1] == 2 and torch.equal(first.alpha, again.alpha)
    assert right(changes([look(model, picture).alpha for picture in pictures], first.extent)) >= 8
    plain = model.module(**model.inputs(pictures[0])).last_hidden_state
    embedded = model.module.embeddings.patch_embeddings(model.inputs(pictures[0])["pixel_values"])
    assert plain.shape == (1, 1 + embedded.shape[1], embedded.shape[2]), "all patches"
    assert AnswerSubject(model).methods(model.inputs(pictures[0])["pixel_values"][0])[0] == "attention"


def test_a_masked_autoencoder_of_another_kind_is_refused(tmp_path: Path) -> None:
    def make(hf: Any) -> Any:
        sizes = {"image_size": [64, 64], "depths": [1, 1, 1, 1], "embed_dim": 16}
        config = hf.HieraConfig(**sizes, decoder_hidden_size=16, decoder_depth=1, decoder_num_heads=2)
        return hf.HieraForPreTraining(config), lambda hf, _: hf.ViTImageProcessor(size={"height": 64, "width": 64})

    model, picture = open_model(saved(tmp_path / "model", make)), squares()[0]
    with pytest.raises(UserError, match="gives the same image another answer each time"):
        look(model, picture)
    with pytest.raises(UserError, match="gives the same image another answer each time"):
        AnswerSubject(model).methods(model.inputs(picture)["pixel_values"][0])


class Tokens(nn.Module):
    """A classifier of 8 x 8 patches, in an order, with one attention."""

    def __init__(self, order: Tensor | None = None, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.order, self.drop = nn.Conv2d(3, 64, 8, 8), order, drop
        self.attention, self.output = nn.MultiheadAttention(64, 2, batch_first=True), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = x if self.order is None else x[:, self.order]
        x = nn.functional.dropout(x, self.drop)
        return self.output((x + self.attention(x, x, x)[0]).mean(dim=1))


def classifier(module: nn.Module) -> OpenedModel:
    return OpenedModel(module.eval(), "classifier", ImageReader((64, 64)), list("abcde"))


def test_patches_in_another_order_have_no_map() -> None:
    place = torch.arange(64).view(8, 8)
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(1))
    for order in (None, place.flatten(), place.T.flatten(), place.flip(1).flatten(), shuffled):
        model, picture = classifier(Tokens(order)), squares()[0]
        if order is None or torch.equal(order, place.flatten()):
            assert look(model, picture).method == "relevance"
        else:
            assert look(model, picture).method == "grad-cam"  # of the patches before they are put in another order
            with pytest.raises(UserError, match="no layer of this model attends to the whole image"):
                look(model, picture, method="attention")


def test_a_model_that_drops_out_at_random_is_refused() -> None:
    with pytest.raises(UserError, match="drops out at random"):
        look(classifier(Tokens(drop=0.5)), squares()[0])
    model, state = classifier(Tokens()), torch.get_rng_state()
    look(model, squares()[0])
    assert torch.equal(state, torch.get_rng_state())


class Channels(nn.Module):
    """Attention over 64 channels, where there are 64 patches too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.keys, self.output = nn.Conv2d(3, 64, 8, 8), nn.Linear(64, 128), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        query, key = (nn.functional.normalize(part.mT, dim=-1) for part in self.keys(x).chunk(2, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(query, key, x.mT, scale=4.0)
        return self.output((x + mixed.mT).mean(dim=1))


def test_attention_over_channels_is_no_map_though_there_are_as_many_patches() -> None:
    model, picture = classifier(Channels()), squares()[0]
    assert recorded(model, model.inputs(picture)).attention is None
    assert look(model, picture).method == "grad-cam"


def test_a_square_is_no_grid_where_the_grid_is_known() -> None:
    assert known_grid(196, [(14, 14), (28, 28)]) == PatchGrid(0, 14, 14)
    assert known_grid(49, [(14, 14)]) == PatchGrid(0, 7, 7), "every second row and column"
    assert known_grid(50, [(28, 28)]) == PatchGrid(1, 7, 7)
    assert known_grid(32, [(14, 14), (56, 56)]) is None, "heads of XCiT"
    assert known_grid(42, [(8, 8), (16, 16)]) is None and known_grid(48, [(14, 14)]) is None


def test_xcit_shows_its_class_attention() -> None:
    """Against the weights that its module computes without fused attention."""
    model, picture = KINDS["timm: XCiT"].make(), squares()[0]
    kept: list[Tensor] = []
    for block in model.module.cls_attn_blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, inputs, __: kept.append(inputs[0].detach()))
    with torch.no_grad():
        model.module(**model.inputs(picture))
    expected_maps = tuple(kept)  # more are kept from now on
    for number, maps in enumerate(expected_maps):
        seen = look(model, picture, layer=number, head=1)
        torch.testing.assert_close(seen.alpha, maps[:, 1, 0, 1:].unflatten(1, (8, 8)))
    identity = torch.eye(65)
    first, second = (torch.cat([one.mean(dim=1)[0], torch.zeros(64, 65)]) / 2 + identity / 2 for one in expected_maps)
    first, second = (one / one.sum(dim=1, keepdim=True) for one in (first, second))
    expected = (second @ first)[0, 1:].view(1, 8, 8)
    torch.testing.assert_close(look(model, picture, method="rollout").alpha, expected)


def test_whether_a_map_is_in_place() -> None:
    """Coarse and fine maps, moved by an eighth of the side, mirrored, turned, and of noise."""

    def cells(picture: Image.Image, rows: int, columns: int) -> Tensor:
        small = picture.convert("RGB").resize((columns, rows), Image.Resampling.BOX)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).float()

    for rows, columns in ((2, 2), (3, 3), (4, 4), (14, 14), (4, 8), (30, 20)):
        assert in_place(lambda picture, size=(rows, columns): cells(picture, *size)), (rows, columns)
        if rows > 2:
            assert not in_place(lambda picture, size=(rows, columns): cells(picture, *size).flip(2))
            assert not in_place(lambda picture, size=(rows, columns): cells(picture, *size).rot90(1, (1, 2)))
    assert in_place(lambda picture: cells(picture, 16, 16).roll((2, 2), (1, 2)))
    windows = lambda picture: cells(picture, 8, 8).view(3, 2, 4, 2, 4).transpose(2, 3).reshape(3, 8, 8)  # noqa: E731
    assert not in_place(windows), "in the order of 4 x 4 windows"
    assert in_place(lambda picture: cells(picture, 8, 4), (240, 80)) and in_place(lambda _: torch.ones(3, 5, 5))
    mixed = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    assert not in_place(lambda picture: (cells(picture, 8, 8).flatten(1) @ mixed).view(3, 8, 8))
    with pytest.raises(UserError, match="another answer each time"):
        in_place(lambda _: torch.rand(3, 5, 5))
    assert len(marked_pictures((300, 100), 0, (3, 3))) == 10


def test_pix2struct_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def make(hf: Any) -> Any:
        sizes = {"hidden_size": 16, "d_kv": 8, "d_ff": 16, "num_heads": 2, "num_layers": 1}
        vision = {"hidden_size": 16, "d_kv": 8, "d_ff": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
        config = hf.Pix2StructConfig(text_config=sizes | {"vocab_size": len(WORDS)}, vision_config=vision)
        return hf.Pix2StructForConditionalGeneration(config), lambda hf, words: hf.Pix2StructProcessor(
            hf.Pix2StructImageProcessor(max_patches=64), words
        )

    name = saved(tmp_path / "model", make)
    Image.effect_noise((60, 40), 60).convert("RGB").save(tmp_path / "photo.png")
    for verb in ("look", "caption"):
        assert main([verb, name, str(tmp_path / "photo.png"), "--out", str(tmp_path / "out")]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "reads flattened_patches" in line and "(pix2struct) are not taken" in line


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("architectures", 5, "architectures in its config.json must be a list of names, not 5"),
        ("architectures", [{"a": 1}], "architectures in its config.json must be a list of names"),
        ("architectures", "ViTModel", "architectures in its config.json must be a list of names, not 'ViTModel'"),
        ("architectures", ["Of", "none"], "names the architecture Of, which is none"),
        ("architectures", None, "names the architecture none, which is none"),
        ("id2label", {"0": {"a": 1}, "1": "dog"}, "id2label in its config.json must give each class a name"),
        ("id2label", [1], "cannot be opened"),
        ("hidden_size", "wide", "cannot be opened"),
        ("image_mean", "grey", "the processor of transformers:.* fails on a picture"),
        ("image_std", [0.5, None, 0.5], "the processor of transformers:.* fails on a picture"),
        ("size", {"a": 1}, "cannot be opened|fails on a picture"),
    ],
)  # fmt: skip
def test_odd_values_in_a_folder_are_one_line(key: str, value: Any, said: str, tmp_path: Path) -> None:
    name = saved(tmp_path / "model", vit)
    for file in (tmp_path / "model").glob("*config.json"):
        tree = json.loads(file.read_text())
        if key in tree or (key in ("id2label",) and file.name == "config.json"):
            file.write_text(json.dumps(tree | {key: value}))
    with pytest.raises(UserError, match=said) as error:
        look(open_model(name), squares()[0])
    assert "\n" not in str(error.value) and len(str(error.value)) < 700


@pytest.mark.parametrize("value", [None, [], ["a--b.C"], {"AutoModel": None}, {"AutoModel": ["x", None]}])
def test_an_odd_auto_map_changes_nothing_of_a_known_model(value: Any, tmp_path: Path) -> None:
    name = saved(tmp_path / "model", vit)
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": value, "architectures": ["Unknown"]}))
    with pytest.raises(UserError, match="Unknown, which is none of this version|cannot be opened"):
        open_model(name)
