"""The stand-in for an encoder whose annotation vectors another program has computed."""

from jaxtyping import Float, UInt8
from torch import Tensor

from vision_attn.contracts import Encoder
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError


class Precomputed(Encoder):
    """Stands in for an encoder if annotation vectors are read from files: `Captions(features=...)`. It cannot encode a
    photograph.

    region_size: D, the size of an annotation vector.
    grid: rows and columns of regions, for pictures. For boxes of objects, which lie on no grid: (1, L), or (1, -1) if
        their number differs from image to image. The images of a batch are then padded with zeros, and captioners leave
        out the padding.
    """

    resolution = 224

    def __init__(self, *, region_size: int, grid: tuple[int, int] = (14, 14)) -> None:
        super().__init__()
        check_range("Precomputed", 1, 10**5, region_size=region_size)
        self.pads = tuple(grid) == (1, -1)
        if not self.pads:
            check_range("Precomputed", 1, 1000, rows=grid[0], columns=grid[1])
        self.region_size, self.grid = region_size, (grid[0], grid[1])

    def forward(self, images: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B L D"]:
        """Raise UserError: it cannot encode images."""
        raise UserError(
            "this captioner takes annotation vectors that another program computed: give their folder, "
            "--data.features=FOLDER, or in Python a tensor to model.task.describe; it cannot encode a photograph"
        )

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "given", "node": "files", "resolution": self.resolution}
