"""The page of `vision-attn serve`: drop a photograph or draw a digit; see where a model looks."""

from vision_attn.web.server import make_server

__all__ = ["make_server"]
