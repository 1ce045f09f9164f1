"""The small encoder: regions know their position, see one object, and do not depend on other images."""

import pytest
import torch
from torch import nn

from tests.untrained import write_run
from vision_attn.configuration.run_folder import open_run
from vision_attn.encoders.convnet import ConvNet
from vision_attn.system.errors import UserError


def pictures(number: int, size: int = 56) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (number, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(("resolution", "region_size"), [(56, 128), (64, 48)])
def test_grid_of_regions(resolution, region_size):
    net = ConvNet(resolution=resolution, region_size=region_size, width=32)
    regions = net(pictures(2, resolution))
    assert net.grid == (resolution // 4, resolution // 4) and net.trainable
    assert regions.shape == (2, net.grid[0] * net.grid[1], region_size) and regions.isfinite().all()


def test_it_starts_as_the_encoder_of_another_run(tmp_path):
    run = write_run("sat_soft_scenes", tmp_path / "run")
    sizes = {"resolution": 56, "region_size": 8, "width": 16}
    expected = open_run(run)[0].encoder
    net = ConvNet(**sizes, weights=str(run), trainable=False)
    assert net.identity() != expected.identity()
    net.initialise()
    assert net.identity() == expected.identity() and net.frozen_part() is net
    assert not any(weight.requires_grad for weight in net.parameters())
    with pytest.raises(UserError, match="have different shapes at rows"):
        ConvNet(resolution=40, region_size=8, width=16, weights=str(run)).initialise()
    with pytest.raises(UserError, match="none does not exist: give the folder of a run"):
        ConvNet(**sizes, weights=str(tmp_path / "none")).initialise()


def test_the_receptive_field_of_a_region():
    torch.manual_seed(0)
    net = ConvNet(region_size=16, width=16)
    # Group normalisation depends on the contrast of the whole image; only the convolutions have a receptive field.
    net.layers = nn.Sequential(*(layer for layer in net.layers if isinstance(layer, nn.Conv2d)))
    images = torch.full((1, 3, 56, 56), 64, dtype=torch.uint8)
    row, column = 6, 9
    changed = torch.zeros(56, 56, dtype=torch.bool)
    with torch.no_grad():
        before = net(images)[0, row * 14 + column]
        for y in range(56):
            for x in range(56):
                if y == row * 4 or x == column * 4:
                    images[0, :, y, x] = 255
                    changed[y, x] = not torch.allclose(net(images)[0, row * 14 + column], before, atol=1e-4)
                    images[0, :, y, x] = 64
    seen_y, seen_x = changed[:, column * 4].nonzero().flatten(), changed[row * 4].nonzero().flatten()
    for seen, centre in ((seen_y, row * 4 + 1), (seen_x, column * 4 + 1)):
        assert len(seen) == net.field == seen.max() - seen.min() + 1
        assert abs((seen.max() + seen.min()) / 2 - centre) <= 2


def test_regions_know_their_position():
    net = ConvNet(region_size=32, width=16)
    inner = net(torch.full((1, 3, 56, 56), 90, dtype=torch.uint8))[0].view(14, 14, 32)[4:10, 4:10].flatten(0, 1)
    distances = torch.cdist(inner, inner) + torch.eye(36)
    assert distances.min() > 0.05


def test_embeddings_of_neighbours_are_similar_at_first():
    torch.manual_seed(0)
    net = ConvNet(region_size=32, width=16)
    for embeddings, side in ((net.rows, 0), (net.columns, 1)):
        assert embeddings.diff(dim=side).norm() < 0.5 * embeddings.norm()  # of independent numbers 1.4 times


def test_an_image_does_not_depend_on_its_batch():
    net, images = ConvNet(region_size=32, width=32), pictures(5)
    together = net(images)
    alone = torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    net.train()
    torch.testing.assert_close(net(images), together)  # nothing is stored between calls


def test_every_weight_learns():
    net = ConvNet(region_size=32, width=16)
    net(pictures(3)).square().mean().backward()
    assert all(weights.grad is not None and weights.grad.abs().sum() > 0 for weights in net.parameters())


def test_identity_follows_the_weights():
    net = ConvNet(region_size=16, width=16)
    before = net.identity()
    assert before == net.identity() and before["resolution"] == 56 and before["backbone"] == "convnet"
    with torch.no_grad():
        net.rows[0, 0, 0] += 1
    assert net.identity()["checksum"] != before["checksum"]


@pytest.mark.parametrize("wrong", [{"resolution": 30}, {"region_size": 20}, {"width": 24}, {"region_size": 0}])
def test_mistakes_are_named(wrong):
    with pytest.raises(UserError, match=f"ConvNet: .*{next(iter(wrong))}="):
        ConvNet(**wrong)


def test_images_of_another_size_are_refused():
    with pytest.raises(UserError, match=r"must be a tensor \(B, 3, 56, 56\) of uint8, but is \(1, 3, 64, 64\)"):
        ConvNet(region_size=16, width=16)(pictures(1, 64))
