"""DRAW and its classifier with loops that run faster."""

from vision_attn.fast.models.over_time import OverTime
from vision_attn.models.draw import DRAW, DRAWReader


class FastDRAWReader(OverTime, DRAWReader):
    pass


class FastDRAW(OverTime, DRAW):
    pass
