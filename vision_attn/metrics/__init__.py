"""How captions are measured, and how attention is.

Light to import: the processes that compute caption metrics pass through here, and none of them needs torch.
"""

from typing import TYPE_CHECKING, Any

from vision_attn.metrics.captions import METRICS, Report, caption_metrics
from vision_attn.metrics.results import read_references, read_results, write_results

if TYPE_CHECKING:
    from vision_attn.metrics.attention import AttentionCorrectness, AttentionMotion

__all__ = [
    "METRICS",
    "AttentionCorrectness",
    "AttentionMotion",
    "Report",
    "caption_metrics",
    "read_references",
    "read_results",
    "write_results",
]


def __getattr__(name: str) -> Any:
    """Bring in torch only where attention is measured."""
    if name in ("AttentionCorrectness", "AttentionMotion"):
        from vision_attn.metrics import attention

        return getattr(attention, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
