"""Encoders of films (Yao et al. 2015): each frame passes through an encoder of images; features of motion can be
added."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts import Encoder
from vision_attn.encoders.backbone import checksum
from vision_attn.encoders.convnet import waves
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.layers.linear import Linear
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class MotionFeatures(nn.Module):
    """Features of motion: differences of frames through a small 3-D convolution (Yao et al. 2015, section 4.1).

    The features of a frame come from its difference to the next frame and the four differences before: they show what
    begins there and what has happened, but not what happens after the next frame.

    size: M, the size of a vector.
    width: channels of the convolutions.
    cells: a frame is divided into cells x cells parts with separate features, so that features show which regions move.

    Differs from the paper, whose 3-D convolution is deeper, sees histograms of gradients and of optical flow, and was
    trained to recognise actions.
    """

    def __init__(self, *, size: int = 64, width: int = 16, cells: int = 4) -> None:
        super().__init__()
        check_range("MotionFeatures", 1, 4096, size=size, width=width)
        check_range("MotionFeatures", 1, 64, cells=cells)
        self.size, self.cells = size, cells
        self.layers = nn.Sequential(
            nn.Conv3d(3, width, (3, 5, 5), stride=(1, 4, 4), padding=(0, 2, 2)),
            nn.ReLU(),
            nn.Conv3d(width, width, (3, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1)),
            nn.ReLU(),
            nn.AdaptiveMaxPool3d((None, cells, cells)),
        )
        self.output = nn.Sequential(Linear(width, size), nn.LayerNorm(size), nn.ReLU())

    def forward(self, films: UInt8[Tensor, "B F 3 Y X"]) -> Float[Tensor, "B F cells M"]:
        pixels = films.to(next(self.layers.parameters()).dtype) / 64
        differences = F.pad(pixels.diff(dim=1), (0, 0, 0, 0, 0, 0, 4, 1))  # the last frame has none after it
        return self.output(self.layers(differences.transpose(1, 2)).flatten(3).permute(0, 2, 3, 1))

    def over(self, grid: tuple[int, int], features: Float[Tensor, "B F cells M"]) -> Float[Tensor, "B F L M"]:
        """Return the features for each region of a grid, row by row."""
        rows, columns = (torch.arange(number, device=features.device) * self.cells // number for number in grid)
        return features[:, :, (rows[:, None] * self.cells + columns).flatten()]


class FrameRegions(Encoder):
    """The regions of all frames: uint8 films (B, F, 3, S, S) -> (B, F L, D), frame by frame.

    encoder: an encoder of images; each frame passes through it.
    frames: F, the number of frames of a film.
    motion: features of motion, appended to the annotation vectors at the same place (Yao et al. 2015); None: none.

    Differs from the paper: adds a learned embedding of the time to each frame, as `ConvNet` does for rows and columns,
    because words such as "then" and "finally" compare times.
    """

    trainable = True

    def __init__(self, *, encoder: Encoder, frames: int = 9, motion: MotionFeatures | None = None) -> None:
        super().__init__()
        check_range(type(self).__name__, 2, 512, frames=frames)
        if encoder.pads or -1 in encoder.grid:
            raise UserError(f"{type(self).__name__} takes an encoder whose images all have the same number of regions")
        self.encoder, self.frames, self.motion = encoder, frames, motion
        self.resolution, self.fit, self.rate = encoder.resolution, encoder.fit, encoder.rate
        self.grid = encoder.grid
        self.region_size = encoder.region_size + (0 if motion is None else motion.size)
        self.times = nn.Parameter(waves(frames, self.region_size)[:, None])

    def frozen_part(self) -> Encoder | None:
        """Return the encoder of images, over frames. None if it is trained, or if there are features of motion, which
        need pixels."""
        frozen = self.encoder.frozen_part() if self.motion is None else None
        return None if frozen is None else FrozenFrames(frozen, self.frames)

    def extent(self, columns: int | None = None) -> Extent:
        """Return where the regions of a frame lie on it."""
        return self.encoder.extent(columns)

    def initialise(self) -> None:
        self.encoder.initialise()

    def identity(self) -> dict[str, str | int]:
        return self.encoder.identity() | {"frames": self.frames, "checksum": checksum(self)}

    def forward(self, films: UInt8[Tensor, "B F 3 S S"]) -> Float[Tensor, "B L D"]:
        """Encode films. Raises UserError for films of another number of frames."""
        require("films", films, "B F 3 Y X", "uint8", F=self.frames)
        regions = self.encoder(films.flatten(0, 1)).unflatten(0, (-1, self.frames))
        return self.timed(regions, None if self.motion is None else self.motion(films))

    def finish(self, cached: Float[Tensor, "B _ _"]) -> Float[Tensor, "B L D"]:
        frames = cached.unflatten(1, (self.frames, -1))
        return self.timed(self.encoder.finish(frames.flatten(0, 1)).unflatten(0, (-1, self.frames)))

    def timed(
        self, regions: Float[Tensor, "B F L D"], motion: Float[Tensor, "B F cells M"] | None = None
    ) -> Float[Tensor, "B _ _"]:
        """Return annotation vectors of the regions of frames, with their motion and times."""
        if self.motion is not None and motion is not None:
            regions = torch.cat([regions, self.motion.over(self.encoder.grid, motion)], dim=-1)
        return (self.pooled(regions) + self.times).flatten(1, 2)

    def pooled(self, regions: Float[Tensor, "B F L D"]) -> Float[Tensor, "B F _ _"]:
        """Return the annotation vectors of each frame: here all regions."""
        return regions


class FrameVectors(FrameRegions):
    """One vector for each frame: uint8 films (B, F, 3, S, S) -> (B, F, D), for the temporal attention of Yao et al.
    2015.

    The vector is the normalised maximum, over regions, of a linear layer's outputs. In a mean, small objects would
    hardly count. Without the layer, a maximum would lose which features occur together in a region.

    encoder, frames, motion: as for `FrameRegions`.
    size: D, the size of a vector.

    Differs from the paper, where features of motion are appended to the vector of a frame: here they are appended to
    its regions before the maximum, so that the vector of a frame tells what moves in it.
    """

    def __init__(
        self, *, encoder: Encoder, frames: int = 9, motion: MotionFeatures | None = None, size: int = 256
    ) -> None:
        super().__init__(encoder=encoder, frames=frames, motion=motion)
        check_range("FrameVectors", 1, 10**5, size=size)
        self.layer, self.norm = Linear(self.region_size, size), nn.LayerNorm(size)
        self.region_size, self.grid = size, (1, 1)
        self.times = nn.Parameter(waves(frames, size)[:, None])

    def extent(self, columns: int | None = None) -> Extent:
        return WHOLE

    def pooled(self, regions: Float[Tensor, "B F L _"]) -> Float[Tensor, "B F 1 D"]:
        return self.norm(self.layer(regions).amax(dim=2, keepdim=True))


class FrozenFrames(Encoder):
    """The part of `FrameRegions` whose outputs are cached: an encoder that is not trained, applied frame by frame."""

    def __init__(self, encoder: Encoder, frames: int) -> None:
        super().__init__()
        self.encoder, self.frames = encoder, frames
        self.resolution, self.fit, self.grid = encoder.resolution, encoder.fit, encoder.grid
        self.region_size = encoder.region_size

    def identity(self) -> dict[str, str | int]:
        return self.encoder.identity() | {"frames": self.frames}

    def forward(self, films: UInt8[Tensor, "B F 3 S S"]) -> Float[Tensor, "B L D"]:
        return self.encoder(films.flatten(0, 1)).unflatten(0, (-1, self.frames)).flatten(1, 2)
