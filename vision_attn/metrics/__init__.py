"""Metrics of captions, transcripts, classes and attention maps, collected in evaluators.

Imports torch only on demand, because the processes that compute caption metrics import this package and do not need it.
"""

from typing import TYPE_CHECKING, Any

from vision_attn.metrics.coco.captions import CLIP, METRICS, Report, caption_metrics
from vision_attn.metrics.coco.results import write_each, write_results

if TYPE_CHECKING:
    from vision_attn.metrics.attention import AttentionCorrectness, AttentionMotion

__all__ = [
    "CLIP",
    "METRICS",
    "AttentionCorrectness",
    "AttentionMotion",
    "Report",
    "caption_metrics",
    "write_each",
    "write_results",
]


def __getattr__(name: str) -> Any:
    """Import torch only for the metrics of attention."""
    if name in ("AttentionCorrectness", "AttentionMotion"):
        from vision_attn.metrics import attention

        return getattr(attention, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
