"""The constants that `templates/overlay.js` needs to draw maps on pages as `views.py` draws them in pictures."""

from typing import Any

import torch
from PIL import ImageColor

from vision_attn.viz.overlay.scale import SHARES
from vision_attn.viz.overlay.views import LINE, OPACITY, OUTSIDE, RAMP, View
from vision_attn.viz.panel_sheets import DIM, PALE, VEIL

NAMES: dict[View, str] = {"color": "colour", "light": "light", "contours": "contours", "cells": "cells"}
"""The names of views in texts."""


def gradient() -> str:
    """Return the colours of a scale as CSS, on a grey ground: see `views.ramp`."""
    stops = zip(map(ImageColor.getrgb, RAMP), torch.linspace(0, OPACITY, len(RAMP)).tolist(), strict=True)
    return (
        f"linear-gradient(to right, {', '.join(f'rgb({r} {g} {b} / {share:.2f})' for (r, g, b, *_), share in stops)})"
    )


def constants() -> dict[str, Any]:
    """Return the constants for `templates/overlay.js` and the styles of pages, by name."""
    return {
        "ramp": RAMP, "gradient": gradient(), "line": LINE, "opacity": OPACITY, "held": SHARES, "outside": OUTSIDE,
        "veil": VEIL, "dim": DIM, "pale": PALE,
    }  # fmt: skip
