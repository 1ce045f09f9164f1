"""MNIST with two digits on one canvas, for the experiment of DRAW (Gregor et al., ICML 2015, section 4.3)."""

from vision_attn.data.digits.clutter import Clutter
from vision_attn.data.digits.mnist import NUM_VALIDATION, SIDE


class TwoDigits(Clutter):
    """Two digits at random positions on the canvas, with intensities added and clipped to 1.

    Implemented as clutter with a single piece as large as a digit. Labels and boxes are those of one of the two digits.
    Training images, fixed sets and arguments are as in `Clutter`.
    """

    def __init__(
        self,
        *,
        canvas: int = 60,
        batch_size: int = 128,
        epoch_images: int = 51200,
        val_images: int = NUM_VALIDATION,
        test_images: int = 10000,
        folder: str = "mnist",
        download: bool = False,
    ) -> None:
        super().__init__(
            canvas=canvas,
            pieces=1,
            piece=SIDE,
            batch_size=batch_size,
            epoch_images=epoch_images,
            val_images=val_images,
            test_images=test_images,
            folder=folder,
            download=download,
        )
