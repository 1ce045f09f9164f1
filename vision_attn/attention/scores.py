"""Scores e_ti: how well each region fits a query, before the softmax.

A score derives from `Score`. `project(regions) -> keys` runs once per image, outside the word loop;
`forward(query, keys, carry) -> (scores, carry)` once per word. Keys are held once per image, queries once per row (a
caption or a beam).

Constructors raise ValueError for sizes of regions and queries that a score cannot compare.
"""

from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vision_attn.layers.linear import Linear
from vision_attn.layers.nested import Nested
from vision_attn.layers.precise import precise
from vision_attn.shapes import require

UNPROJECTED = "; `project(regions)` computes them, once per image"

CACHED = 2**19
"""Elements of a tensor that fits into a CPU's cache with room to spare: 2 MiB in float32."""

TRITON = find_spec("triton") is not None
"""Whether triton is installed, as it is with torch's CUDA builds. Looked up without the second that importing takes."""


class Score(nn.Module):
    """Base class of scores. Constructed as `score(region_size, query_size)`. Override `project` and `forward`."""

    def project(self, regions: Float[Tensor, "B L D"]) -> Tensor:
        """Compute the keys (B, L, ...) that `forward` compares queries with."""
        raise NotImplementedError

    def start(self, keys: Tensor, rows: int) -> Nested:
        """The initial `carry` of `rows` rows: tensors (B, R, ...), or None for a score that remembers nothing.

        The carry is part of the captioner's state, so beam search reorders it.
        """
        return None

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Tensor, carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        """Return the scores of one word and the carry for the next word."""
        raise NotImplementedError


class Additive(Score):
    """Additive score, e_ti = v^T tanh(W_a a_i + W_h h_{t-1} + b), f_att of Xu et al. 2015, eq. 4 (Bahdanau et al.).

    A direct implementation spends most of a captioner's time in the tanh of every (region, row) pair. This one computes
    no tanh: with t = 1 / (1 + e^{2k} e^{2q}), tanh(k + q) = 1 - 2t. The exponentials are computed once per key and once
    per query, and a pair costs one multiplication, one addition and one division. The backward pass recomputes t
    instead of storing it, because T words would store T tensors of (R, L, A) per image.

    The pairs are computed by a fused loop on a CPU (`additive_numba`), by a Triton kernel on a GPU (`additive_triton`),
    and by tensor operations (`_AdditiveScore`) where neither can run or under `torch.compile`.
    """

    LIMIT = 40.0
    """Projections are clipped to +-40, so that e^{2k} stays finite in float32. Below it, tanh(k + q) is exact."""

    def __init__(self, region_size: int, query_size: int, *, attention_size: int = 512):
        super().__init__()
        self.key = Linear(region_size, attention_size)
        self.query = Linear(query_size, attention_size, bias=False)
        self.weight = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) / attention_size**0.5)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """e^{2k} with k = W_a a_i + b, in float32 or wider also under autocast."""
        return self._exponential(self.key(regions))

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("keys", keys, "B L A", "float", A=len(self.weight), hint=UNPROJECTED)
        query = self._exponential(self.query(query))
        if torch.compiler.is_compiling() and not (TRITON and query.is_cuda):  # the compiler fuses this expression
            return self.weight.sum() - 2 * (_reciprocal(query, keys) * self.weight).sum(dim=-1), None
        return _AdditiveScore.apply(query, keys, self.weight), None

    def _exponential(self, projection: Tensor) -> Tensor:
        return precise(projection).clamp(-self.LIMIT, self.LIMIT).mul(2).exp()


class _AdditiveScore(torch.autograd.Function):
    """sum_a v_a (1 - 2 t) with t = 1 / (1 + e^{2q} e^{2k})."""

    @staticmethod
    def forward(ctx, query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(query, keys, weight)
        if fused := _fused(query):
            return fused.scores(query, keys, weight)
        scores = query.new_empty(*query.shape[:2], keys.shape[1])
        for image in _chunks(query, keys):
            torch.matmul(_reciprocal(query[image], keys[image]), weight, out=scores[image])
        return scores.mul_(-2).add_(weight.sum())

    @staticmethod
    def backward(ctx, grad: Tensor):
        query, keys, weight = ctx.saved_tensors
        if fused := _fused(query):
            return fused.gradients(query, keys, weight, grad)
        grad = grad.contiguous()
        grad_query, grad_keys, grad_weight = torch.empty_like(query), torch.empty_like(keys), torch.zeros_like(weight)
        for image in _chunks(query, keys):
            t, g = _reciprocal(query[image], keys[image]), grad[image]
            grad_weight += torch.mv(t.flatten(0, -2).T, g.flatten())
            slope = torch.addcmul(t, t, t, value=-1).mul_(g[..., None])  # of -t with respect to log(e^{2q} e^{2k})
            torch.sum(slope, -2, out=grad_query[image])
            torch.sum(slope, -3, out=grad_keys[image])
        grad_query = grad_query.mul_(2 * weight).div_(query)
        grad_keys = grad_keys.mul_(2 * weight).div_(keys)
        return grad_query, grad_keys, grad.sum() - 2 * grad_weight


def _fused(query: Tensor) -> ModuleType | None:
    """The module with kernels for `query`, if there is one; without numba, say, tensor operations do the same."""
    if query.device.type == "cpu" and query.dtype == torch.float32:
        return _numba()
    if query.is_cuda and TRITON:
        return _triton(query.device)
    return None


def _triton(device: torch.device) -> ModuleType | None:
    """The Triton kernels, unless they fail on `device`. A compiler needs what they need, so under it none is tried."""
    from vision_attn.attention import additive_triton

    return additive_triton if torch.compiler.is_compiling() or additive_triton.runs_on(device) else None


@cache
def _numba() -> ModuleType | None:
    try:
        from vision_attn.attention import additive_numba
    except ImportError:
        return None
    return additive_numba


def _reciprocal(query: Tensor, keys: Tensor) -> Tensor:
    """1 / (1 + e^{2q} e^{2k}) of every row and region, (..., R, L, A). A product that overflows gives the limit, 0."""
    return torch.mul(query[..., :, None, :], keys[..., None, :, :]).add_(1).reciprocal_()


def _chunks(query: Tensor, keys: Tensor) -> list[slice]:
    """Slices of the batch: all images on a GPU; on a CPU, as many as keep their (row, region) pairs in cache."""
    images, rows, _ = query.shape
    at_once = images if keys.is_cuda else max(1, CACHED // (rows * keys[0].numel()))
    return [slice(first, first + at_once) for first in range(0, images, at_once)]


class Dot(Score):
    """Dot product, e_i = a_i . h (Luong et al. 2015). Has no weights, so annotation vectors and states must have the
    same size."""

    def __init__(self, region_size: int, query_size: int):
        super().__init__()
        if region_size != query_size:
            raise ValueError(
                f"{type(self).__name__} compares annotation vectors of size {region_size} with states of size "
                f"{query_size}: make them equal (hidden_size={region_size}), or choose the score General or Additive"
            )

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return regions

    def forward(
        self, query: Float[Tensor, "B R D"], keys: Float[Tensor, "B L D"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("keys", keys, "B L D", "float", B=len(query), D=query.shape[-1], hint=UNPROJECTED)
        return query @ keys.mT, None


class ScaledDot(Dot):
    """Scaled dot product, e_i = a_i . h / sqrt(D), the argument of the softmax in Vaswani et al. 2017, eq. 1.

    The scale keeps the variance of the scores, and so the sharpness of their softmax, independent of D.
    """

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return regions / regions.shape[-1] ** 0.5


class Cosine(Dot):
    """Scaled cosine similarity, e_i = tau cos(a_i, h), after Graves et al. 2014, eq. 5.

    The scale tau is learned, through its logarithm. Cosines lie between -1 and 1; without a scale their softmax over
    196 regions stays nearly uniform.
    """

    def __init__(self, region_size: int, query_size: int, *, sharpness: float = 10.0):
        """`sharpness`: the initial tau."""
        super().__init__(region_size, query_size)
        if sharpness <= 0:
            raise ValueError(f"Cosine: sharpness={sharpness} must be positive")
        self.log_sharpness = nn.Parameter(torch.tensor(float(sharpness)).log())

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return F.normalize(regions, dim=-1)

    def forward(
        self, query: Float[Tensor, "B R D"], keys: Float[Tensor, "B L D"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("keys", keys, "B L D", "float", B=len(query), D=query.shape[-1], hint=UNPROJECTED)
        return (self.log_sharpness.exp() * F.normalize(query, dim=-1)) @ keys.mT, None


class General(Dot):
    """Bilinear score, e_i = h^T W a_i (Luong et al. 2015, "general"): a dot product after a learned map, so that
    annotation vectors and states may have any sizes."""

    def __init__(self, region_size: int, query_size: int):
        super().__init__(query_size, query_size)
        self.key = Linear(region_size, query_size, bias=False)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L H"]:
        return self.key(regions)


class Location(Score):
    """Location-based score, e = W h + b (Luong et al. 2015, eq. 8): one number per region position, independent of
    the image.

    Differs from the paper, which has no bias b.
    """

    def __init__(self, region_size: int, query_size: int, *, num_regions: int = 196):
        super().__init__()
        self.query = Linear(query_size, num_regions)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L 0"]:
        """Return empty keys: only the number of regions matters. Raises ValueError if it is not `num_regions`."""
        if regions.shape[1] != self.query.out_features:
            raise ValueError(
                f"Location was built for num_regions={self.query.out_features}, but images have {regions.shape[1]}"
            )
        return regions[..., :0]

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L 0"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        return self.query(query), None


class ContentLocation(Score):
    """Location-aware additive score: it also sees the previous attention map, through a convolution.

    f = F * alpha_{t-1} (Chorowski et al. 2015, eq. 8) and e_i = v^T tanh(W_a a_i + W_h h + U f_i + b) (eq. 9).

    Differs from the paper: the convolution runs over the rows and columns of `grid`, not along time.

    Computes the tanh of every (row, region) pair, so it costs several times the additive score. The backward pass
    recomputes the pairs instead of storing them.
    """

    def __init__(
        self,
        region_size: int,
        query_size: int,
        *,
        attention_size: int = 512,
        num_filters: int = 8,
        filter_size: int = 5,
        grid: tuple[int, int] = (14, 14),
    ):
        super().__init__()
        if filter_size % 2 == 0:
            raise ValueError(f"ContentLocation: filter_size={filter_size} must be odd, so that filters have a centre")
        self.grid = tuple(grid)
        self.key = Linear(region_size, attention_size)
        self.query = Linear(query_size, attention_size, bias=False)
        self.filters = nn.Conv2d(1, num_filters, filter_size, padding=filter_size // 2, bias=False)
        self.feature = Linear(num_filters, attention_size, bias=False)
        self.weight = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) / attention_size**0.5)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """k_i = W_a a_i + b. Raises ValueError if the number of regions is not that of `grid`."""
        if regions.shape[1] != self.grid[0] * self.grid[1]:
            raise ValueError(
                f"ContentLocation was built for grid={self.grid}, but images have {regions.shape[1]} regions"
            )
        return self.key(regions)

    def start(self, keys: Float[Tensor, "B L A"], rows: int) -> Float[Tensor, "B R L"]:
        """The map before the first word: zeros."""
        return keys.new_zeros(len(keys), rows, keys.shape[1])

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Float[Tensor, "B R L"] | None = None
    ) -> tuple[Float[Tensor, "B R L"], Float[Tensor, "B R L"]]:
        """`carry` is alpha_{t-1}. Return the scores e_t and, as the next carry, alpha_t = softmax(e_t)."""
        require("keys", keys, "B L A", "float", A=len(self.weight), hint=UNPROJECTED)
        previous = self.start(keys, query.shape[1]) if carry is None else carry
        features = self.filters(previous.flatten(0, 1).unflatten(1, (1, *self.grid)))
        features = features.flatten(2).mT.unflatten(0, query.shape[:2])  # f_i, (B, R, L, filters)
        scores = checkpoint(self._pairs, self.query(query), keys, features, use_reentrant=False)
        return scores, precise(scores).softmax(dim=-1)

    def _pairs(self, query: Tensor, keys: Tensor, features: Tensor) -> Tensor:
        return (keys[:, None] + query[:, :, None] + self.feature(features)).tanh() @ self.weight
