"""Backbones: the layer that is cut at, normalisation, weights, and the messages when they do not fit."""

import re
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torchvision.models import mobilenet_v2, vgg16, vgg19

from vision_attn.encoders import network_settings, networks
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.vgg import VGG
from vision_attn.engine.optimizers import with_fused_kernels
from vision_attn.system.errors import UserError

SMALL = {"name": "mobilenet_v2", "node": "features.18", "resolution": 64}
NETWORKS = {16: vgg16, 19: vgg19}


def images(resolution: int, count: int = 2) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(0, 256, (count, 3, resolution, resolution), dtype=torch.uint8)


@pytest.mark.parametrize("layers", [16, 19])
def test_vgg_is_cut_after_the_relu_before_the_last_pool(layers):
    """196 vectors of 512 for 224 pixels; here the same cut at 64 pixels against torchvision's own layers."""
    encoder = VGG(layers=layers, resolution=64, weights=None)
    with torch.device("meta"):
        features = NETWORKS[layers]().features.eval()
    features.load_state_dict(
        {key.removeprefix("features."): value for key, value in encoder.body.state_dict().items()}, assign=True
    )
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normal = (images(64) / 255 - mean[:, None, None]) / std[:, None, None]
    with torch.no_grad():
        pooled = features(normal)
        regions = encoder(images(64))
    assert regions.shape == (2, 16, 512) and (regions >= 0).all()
    again = torch.nn.functional.max_pool2d(regions.transpose(1, 2).unflatten(2, (4, 4)), 2)
    torch.testing.assert_close(again, pooled, rtol=1e-4, atol=1e-5)


def test_vgg_at_the_papers_size():
    encoder = VGG(weights=None)
    assert (encoder.region_size, encoder.grid, encoder.resolution) == (512, (14, 14), 224)
    with torch.no_grad():
        assert encoder(images(224, 1)).shape == (1, 196, 512)


def test_regions_run_row_by_row():
    encoder = Backbone(**SMALL | {"node": "features.1"})
    image = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    image[..., :8, 56:] = 255  # top right
    with torch.no_grad():
        lit = (encoder(image) - encoder(torch.zeros_like(image))).abs().sum(-1).view(encoder.grid)
    rows, columns = encoder.grid
    corner = lit[: rows // 4, columns * 3 // 4 :]
    assert (corner > 0).sum() == (lit > 0).sum() > 0


def test_frozen_unless_trainable():
    frozen, trained = Backbone(**SMALL).train(), Backbone(**SMALL, trainable=True).train()
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert not frozen(images(64)).requires_grad
    trained(images(64)).sum().backward()
    assert trained.body.get_parameter("features.0.0.weight").grad.abs().sum() > 0
    for encoder in (frozen, trained):  # batch-norm statistics stay as trained
        assert not any(module.training for module in encoder.modules())


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_from_a_file(suffix, tmp_path):
    """A file of the whole network fits, classifier included; only the layers behind the cut are ignored."""
    state = mobilenet_v2().state_dict()
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    encoder = Backbone(**SMALL, weights=str(path))
    encoder.initialise()
    loaded = encoder.body.state_dict()
    assert all(torch.equal(loaded[key], state[key]) for key in loaded)


def test_missing_layers_are_listed(tmp_path):
    state = {
        key: value for key, value in mobilenet_v2().state_dict().items() if not key.startswith("features.17.conv.2")
    }
    save_file(state, tmp_path / "partial.safetensors")
    lacking = r"of mobilenet_v2 lack 1 layer \(features\.17\.conv\.2\): .*node=features\.17\.conv\.1\)$"
    with pytest.raises(UserError, match=lacking):
        Backbone(**SMALL, weights=str(tmp_path / "partial.safetensors")).initialise()


def test_weights_of_another_network_are_refused(tmp_path):
    save_file({"features.0.0.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=r"lack .* layers \(features.0.1, features.1.* and 95 more\): is this file"):
        Backbone(**SMALL, weights=str(tmp_path / "other.safetensors")).initialise()
    save_file(mobilenet_v2(width_mult=0.5).state_dict(), tmp_path / "thin.safetensors")
    with pytest.raises(UserError, match="have different shapes at features.0.0.weight"):
        Backbone(**SMALL, weights=str(tmp_path / "thin.safetensors")).initialise()


def test_a_file_without_weights(tmp_path):
    (tmp_path / "weights.pth").write_text("not weights")
    with pytest.raises(UserError, match="weights.pth is neither a safetensors file nor a torch state dict"):
        Backbone(**SMALL, weights=str(tmp_path / "weights.pth")).initialise()
    with pytest.raises(
        UserError, match="nowhere.pth was not found .*--task.encoder.weights=IMAGENET1K_V2, .*weights=FILE"
    ):
        Backbone(**SMALL, weights="nowhere.pth").initialise()
    with pytest.raises(
        UserError, match="nowhere.pth was not found .*--task.encoder.weights=FILE.*encoder.name=resnet50"
    ):
        Backbone(name="efficientnet_lite0", node="blocks.6", resolution=64, weights="nowhere.pth").initialise()


def test_pickled_modules_are_not_run(tmp_path):
    torch.save(mobilenet_v2(), tmp_path / "module.pth")
    with pytest.raises(UserError, match="module.pth is neither"):
        Backbone(**SMALL, weights=str(tmp_path / "module.pth")).initialise()


def test_offline_the_message_names_the_missing_file(monkeypatch):
    from torchvision.models import MobileNet_V2_Weights

    def offline(self, *args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(MobileNet_V2_Weights, "get_state_dict", offline)
    with pytest.raises(UserError, match=r"could not be downloaded .*checkpoints/mobilenet_v2-.*\.pth"):
        Backbone(**SMALL, weights="IMAGENET1K_V1").initialise()


def test_torchvisions_weights_bring_their_normalisation(monkeypatch):
    from torchvision.models import MobileNet_V2_Weights

    monkeypatch.setattr(MobileNet_V2_Weights, "get_state_dict", lambda self, **_: mobilenet_v2().state_dict())
    encoder = Backbone(**SMALL, weights="IMAGENET1K_V2", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    encoder.initialise()
    torch.testing.assert_close(encoder.mean.flatten(), torch.tensor([0.485, 0.456, 0.406]))
    torch.testing.assert_close(encoder.std.flatten(), torch.tensor([0.229, 0.224, 0.225]))


HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    "name, node, own, usual",
    [
        ("mobilenet_v2", "features.1", {"mean": HALF, "std": HALF}, "[0.485,0.456,0.406] .*[0.229,0.224,0.225]"),
        ("efficientnet_lite0", "blocks.0", {}, "[0.5,0.5,0.5] .*[0.5,0.5,0.5]"),
        ("timm:resnet10t", "layer1", {"mean": HALF}, "[0.485,0.456,0.406] .*[0.229,0.224,0.225]"),
    ],
)
def test_a_line_tells_of_a_normalisation_that_the_network_of_a_file_does_not_usually_have(
    name, node, own, usual, tmp_path, capsys
):
    """Such as one that the config had for the weights of another network."""
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    settings = {"name": name, "node": node, "resolution": 64}
    state = Backbone(**settings).body.state_dict()
    torch.save(state, tmp_path / "mine.pth")
    file = str(tmp_path / "mine.pth")
    Backbone(**settings, **own, weights=file).initialise()
    usual = usual.replace("[", "\\[")
    (line,) = capsys.readouterr().out.splitlines()
    assert re.match(
        rf"mine.pth is used with mean \[.*--task.encoder.mean={usual.replace(' .*', ' --task.encoder.std=')}$", line
    )
    mean, std = (tuple(map(float, each.split(","))) for each in re.findall(r"(?:mean|std)=\[([\d.,]+)\]", line))
    Backbone(**settings, mean=mean, std=std, weights=file).initialise()
    assert not capsys.readouterr().out


def test_no_line_tells_of_the_normalisation_of_our_own_configs():
    for path in (Path(__file__).parents[2] / "configs").glob("sat_*flickr8k*.yaml"):
        encoder = yaml.safe_load(path.read_text())["task"]["init_args"]["encoder"]["init_args"]
        if "mean" in encoder:
            pair = (torch.tensor(encoder[key]) for key in ("mean", "std"))
            assert [*network_settings.unusual_normalisation(encoder["name"], Path(encoder["weights"]), *pair)] == []


def test_unknown_nodes_and_names():
    with pytest.raises(UserError, match="mobilenet_v2 cannot be cut at features.99"):
        Backbone(**SMALL | {"node": "features.99"})
    with pytest.raises(UserError, match="mobilenet_v3000"):
        Backbone(**SMALL | {"name": "mobilenet_v3000"})
    with pytest.raises(UserError, match="not a map"):
        Backbone(**SMALL | {"node": "flatten"})


def test_identity_tells_encoders_apart():
    torch.manual_seed(0)
    first = Backbone(**SMALL)
    torch.manual_seed(0)
    same = Backbone(**SMALL)
    assert first.identity() == same.identity()
    others = [Backbone(**SMALL | {"node": "features.17"}), Backbone(**SMALL), Backbone(**SMALL | {"resolution": 96})]
    with torch.no_grad():
        same.mean.add_(0.1)
    assert all(first.identity() != other.identity() for other in (*others, same))


def test_real_mobilenet_sees_what_is_in_a_photograph(data_folder):
    """The real weights load, and give for a real photograph what torchvision's network gives."""
    from safetensors.torch import load_file

    from vision_attn.data.images.squares import read_image

    file = "weights/mobilenet_v2_torchvision.fp16.safetensors"
    encoder = Backbone(**SMALL | {"resolution": 224}, weights=file, mean=(0.5,) * 3, std=(0.5,) * 3)
    encoder.initialise()
    network = mobilenet_v2()
    network.load_state_dict(
        {k: v.float() if v.is_floating_point() else v for k, v in load_file(data_folder / file).items()}
    )
    photograph = read_image(sorted((data_folder / "flickr8k/images").iterdir())[0], 224)[None]
    with torch.no_grad():
        regions = encoder(photograph)
        expected = network.eval().features(photograph / 127.5 - 1).flatten(2).transpose(1, 2)
    torch.testing.assert_close(regions, expected, rtol=1e-3, atol=1e-3)


def test_partial_vgg_names_what_is_missing(data_folder):
    with pytest.raises(
        UserError, match=r"lack 8 layers \(features\.19.*--task.encoder.name=vgg19 --task.encoder.node=features.17\)$"
    ):
        VGG(weights="weights/vgg19_keras_conv1_1_to_conv3_4.fp16.safetensors").initialise()


def randomise_norms(encoder: Backbone) -> None:
    for layer in encoder.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            for tensor in (layer.running_mean, layer.weight, layer.bias):
                torch.nn.init.normal_(tensor)
            torch.nn.init.uniform_(layer.running_var, 0.5, 2)


@pytest.mark.parametrize(("name", "node"), [("mobilenet_v2", "features.4"), ("resnet18", "layer2")])
def test_a_frozen_network_folds_its_normalisation_into_convolutions(name: str, node: str) -> None:
    encoder = Backbone(name=name, node=node, resolution=32).eval()
    state = list(encoder.state_dict())
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    for _ in range(2):  # the folded network follows changes of the weights
        with torch.no_grad():
            randomise_norms(encoder)
            expected = encoder.body(normalised(encoder, images))["map"].flatten(2).mT
            torch.testing.assert_close(encoder(images), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    folded = encoder._folded._folded
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in folded.modules())
    assert list(encoder.state_dict()) == state


@pytest.mark.parametrize("trainable", [True, "features.1"])
def test_a_network_in_training_follows_every_step(trainable: bool | str) -> None:
    """Torch's fused optimizers change weights without raising their versions, by which folded networks notice it."""
    encoder = Backbone(name="mobilenet_v2", node="features.2", resolution=32, trainable=trainable)
    pictures = images(32)
    with torch.no_grad():
        before = encoder(pictures)
    encoder(pictures).sum().backward()
    trained = [weight for weight in encoder.body.parameters() if weight.requires_grad]
    assert trained and all(weight.grad is not None for weight in trained)
    with_fused_kernels(torch.optim.SGD(trained, lr=0.1)).step()
    with torch.no_grad():
        assert not torch.allclose(encoder(pictures), before)
    torch.testing.assert_close(
        encoder(pictures), encoder.regions_of(encoder.body(normalised(encoder, pictures))["map"])
    )


def normalised(encoder: Backbone, pictures: torch.Tensor) -> torch.Tensor:
    return (pictures.float() / 255 - encoder.mean) / encoder.std


def test_maps_with_channels_last_are_cached_too() -> None:
    partly = Backbone(name="swin_t", node="permute", resolution=32, trainable="features.1").eval()
    pictures = images(32)
    torch.testing.assert_close(partly.finish(partly.frozen_part()(pictures)), partly(pictures))


@pytest.mark.parametrize("trainable", [False, True, "features.3"])
def test_an_encoder_in_bfloat16_keeps_its_vectors_to_rounding(trainable: bool | str) -> None:
    whole, half = (Backbone(**PARTLY, trainable=trainable, precision=kind) for kind in ("fp32", "bf16"))
    with torch.no_grad():
        randomise_norms(whole)
    half.load_state_dict(whole.state_dict())
    expected, found = whole(images(32)), half(images(32))
    assert found.dtype == torch.float32
    assert 1e-4 < (found - expected).norm() / expected.norm() < 0.05
    if half.start:
        torch.testing.assert_close(half.finish(half.frozen_part()(images(32))), found, rtol=0.02, atol=0.02)
    if trainable:
        found.square().sum().backward()
        assert half.body.get_parameter("features.6.conv.0.0.weight").grad.dtype == torch.float32


def test_vectors_in_bfloat16_have_a_cache_of_their_own() -> None:
    torch.manual_seed(0)
    partly = Backbone(**PARTLY, trainable="features.3", precision="bf16")
    assert partly.frozen_part().precision == "bf16"
    torch.manual_seed(0)
    whole = Backbone(**PARTLY, trainable="features.3")
    assert partly.identity() == whole.identity() | {"precision": "bf16"}  # caches in float32 are found as before
    assert VGG(resolution=32, weights=None, precision="bf16").identity()["precision"] == "bf16"


@pytest.mark.compile
def test_both_ways_to_annotation_vectors_are_compiled() -> None:
    graphs = []
    partly = Backbone(**PARTLY, trainable="features.3")
    kept = partly.frozen_part()(images(32))
    partly.compile(backend=lambda graph, _: graphs.append(graph) or graph.forward)
    partly.finish(kept)
    partly(images(32))
    assert len(graphs) == 2


PARTLY = {"name": "mobilenet_v2", "node": "features.6", "resolution": 32}


def test_layers_after_a_node_are_trained_and_those_before_it_cached() -> None:
    partly, frozen = Backbone(**PARTLY, trainable="features.3"), Backbone(**PARTLY).eval()
    with torch.no_grad():
        randomise_norms(partly)
    frozen.load_state_dict(partly.state_dict())  # the same names, whatever is trained
    stem, pictures = partly.frozen_part(), images(32)
    kept = stem(pictures)
    assert kept.shape == (2, 64, 24) and not kept.requires_grad and (stem.grid, stem.region_size) == ((8, 8), 24)
    expected = frozen(pictures)
    tolerance = {"rtol": 1e-4, "atol": 1e-4 * float(expected.abs().max())}
    found = partly.finish(kept)
    torch.testing.assert_close(found, expected, **tolerance)
    torch.testing.assert_close(partly(pictures), expected, **tolerance)

    found.square().sum().backward()
    trained = {name for name, weight in partly.body.named_parameters() if weight.grad is not None}
    assert trained == {name for name, weight in partly.body.named_parameters() if weight.requires_grad}
    assert {name.split(".")[1] for name in trained} == {"4", "5", "6"}
    with torch.no_grad():
        for weight in partly.body.parameters():
            weight.sub_(weight.grad if weight.grad is not None else 0, alpha=1e-3)
        assert torch.equal(partly.frozen_part()(pictures), kept)
        torch.testing.assert_close(partly(pictures), partly.finish(kept), **tolerance)
        assert not torch.allclose(partly(pictures), expected, **tolerance)


def test_a_cache_of_the_frozen_layers_is_that_of_a_network_cut_there() -> None:
    partly = Backbone(**PARTLY, trainable="features.3")
    there = Backbone(**PARTLY | {"node": "features.3"})
    there.load_state_dict(partly.state_dict(), strict=False)
    assert partly.frozen_part().identity() == there.identity() != partly.identity()
    assert there.frozen_part() is there and Backbone(**PARTLY, trainable=True).frozen_part() is None


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ({"name": "resnet18", "node": "layer2", "trainable": "layer2.0.conv1"}, "computed from layer2.0.conv1 alone"),
        ({"name": "mobilenet_v2", "node": "features.3", "trainable": "features.6"}, "from features.6 alone"),
        ({"name": "mobilenet_v2", "node": "features.3", "trainable": "features.3"}, "no layers after it"),
        ({"name": "mobilenet_v2", "node": "features.3", "trainable": "classifier"}, r"\(1, 1000\), not a map"),
        ({"name": "mobilenet_v2", "node": "features.3", "trainable": "features.99"}, "cannot be cut at features.99"),
    ],
)
def test_training_starts_at_a_map_through_which_everything_passes(cut: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Backbone(resolution=32, **cut)


def test_tables_that_a_network_computes_when_it_is_built_are_kept() -> None:
    body, _ = networks.cut("swin_t", {"map": "features.1.0.attn"}, resolution=32, options={})
    index = body.get_buffer("features.1.0.attn.relative_position_index")  # of two positions in a window of 7 x 7
    assert set(index.tolist()) == set(range((2 * 7 - 1) ** 2))
