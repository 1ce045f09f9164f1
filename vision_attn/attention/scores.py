"""Scores e_ti: how well the content of each region fits a query, before the softmax. `location` has the scores that use
positions.

A score derives from `Score`. `project(regions) -> keys` runs once per image, outside the word loop;
`forward(query, keys, carry) -> (scores, carry)` runs once per word, then `after(carry, alpha) -> carry`, once attention
has computed the map from the scores. Keys are held once per image, queries once per row (a caption or a beam).

Constructors raise UserError if a score cannot compare regions and queries of the given sizes.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts.nested import Nested
from vision_attn.layers.linear import Linear
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError

UNPROJECTED = "; `project(regions)` computes them, once per image"
ROWS = ": R states for each image"


class Score(nn.Module):
    """Base class of scores. Constructed as `score(region_size, query_size)`. Override `project` and `forward`."""

    counts_regions: bool = False
    """Whether it computes with the number of regions, so that padding would change it."""

    def project(self, regions: Float[Tensor, "B L D"]) -> Tensor:
        """Compute the keys (B, L, ...) that `forward` compares queries with."""
        raise UserError(f"{type(self).__name__} must override project(regions)")

    def start(self, keys: Tensor, rows: int) -> Nested:
        """Return the initial `carry` of `rows` rows: tensors (B, R, ...), or None for a score that remembers nothing.

        The carry is part of the captioner's state, so beam search reorders it.
        """
        return None

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Tensor, carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        """Return the scores of one word and the carry for the next word."""
        raise UserError(f"{type(self).__name__} must override forward(query, keys, carry)")

    def after(self, carry: Nested, alpha: Float[Tensor, "B R L"]) -> Nested:
        """Return the carry for the next word, computed from the one that `forward` returned and from alpha_t, the map
        of this word. Override it for a score that sees earlier maps."""
        return carry


class Additive(Score):
    """Additive score, e_ti = v^T tanh(W_a a_i + W_h h_{t-1} + b), f_att of Xu et al. 2015, eq. 4 (Bahdanau et al.).

    gain: multiplies the initial v, and divides the initial W_a, W_h and b. This hardly changes the initial scores,
        since tanh is nearly linear near 0. But Adam, whose steps do not depend on the size of gradients, then changes
        the scores about that many times as fast, through W_a, W_h and b.

    Fast version: `fast.additive.FastAdditive`.
    """

    def __init__(self, region_size: int, query_size: int, *, attention_size: int = 512, gain: float = 1.0):
        super().__init__()
        check_range("Additive", 1e-3, 1e3, gain=gain)
        self.key = Linear(region_size, attention_size)
        self.query = Linear(query_size, attention_size, bias=False)
        self.weight = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) * gain / attention_size**0.5)
        with torch.no_grad():
            for parameter in (self.key.weight, self.key.bias, self.query.weight):
                parameter.div_(gain)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """Return k_i = W_a a_i + b."""
        return self.key(regions)

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L A", "float", B=query.shape[0], A=len(self.weight), hint=UNPROJECTED)
        return at_least_float32(keys[:, None] + self.query(query)[:, :, None]).tanh() @ self.weight, None


class Even(Score):
    """The same score for all regions, so that attention returns their mean: the encoder-decoder without attention that
    serves as the baseline of Yao et al. 2015."""

    def __init__(self, region_size: int, query_size: int):
        super().__init__()

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L"]:
        return at_least_float32(regions.new_zeros(regions.shape[:2]))

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L", "float", B=query.shape[0], hint=UNPROJECTED)
        return keys[:, None].expand(-1, query.shape[1], -1), None


class Dot(Score):
    """Dot product, e_i = a_i . h (Luong et al. 2015). Has no weights, so annotation vectors and states must have the
    same size."""

    def __init__(self, region_size: int, query_size: int):
        super().__init__()
        if region_size != query_size:
            raise UserError(
                f"{type(self).__name__} compares annotation vectors of size {region_size} with states of size "
                f"{query_size}: make them equal (hidden_size={region_size}), or choose the score General or Additive"
            )

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return regions

    def forward(
        self, query: Float[Tensor, "B R D"], keys: Float[Tensor, "B L D"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L D", "float", B=query.shape[0], D=query.shape[-1], hint=UNPROJECTED)
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

    Differs from the paper: a vector shorter than `SHORTEST` counts as one of that length, so that the cosine of a
    vector of zeros is 0, and its gradient is finite.
    """

    SHORTEST = 1e-4

    def __init__(self, region_size: int, query_size: int, *, sharpness: float = 10.0):
        """
        sharpness: the initial tau.
        """
        super().__init__(region_size, query_size)
        check_range("Cosine", 1e-3, 1e4, sharpness=sharpness)
        self.log_sharpness = nn.Parameter(torch.tensor(float(sharpness)).log())

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return self._of_length_1(regions)

    def forward(
        self, query: Float[Tensor, "B R D"], keys: Float[Tensor, "B L D"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L D", "float", B=query.shape[0], D=query.shape[-1], hint=UNPROJECTED)
        return (self.log_sharpness.exp() * self._of_length_1(query)).to(keys.dtype) @ keys.mT, None

    def _of_length_1(self, vectors: Tensor) -> Tensor:
        """Normalise vectors to length 1. Computes in float32 or wider, since squares of float16 overflow and underflow,
        and returns the dtype of `vectors`."""
        return F.normalize(at_least_float32(vectors), dim=-1, eps=self.SHORTEST).to(vectors.dtype)


class Kernel(Dot):
    """Score by distance, e_i = -|h - a_i|^2 / (2 b^2): with `Soft`, alpha_i = K(h - a_i) / sum_j K(h - a_j) of a
    Gaussian kernel K, the weights of kernel regression (Nadaraya 1964; Watson 1964).

    bandwidth: b, the distance at which the weight of a region is exp(-1/2) = 0.61 of that at distance 0. None: D^(1/4).
        Then e_i is the scaled dot product minus |a_i|^2 / (2 sqrt(D)) and minus |h|^2 / (2 sqrt(D)), which is the same
        for all regions. So if all annotation vectors have the same length, both scores give the same map.
    learned: whether b is learned, through its logarithm.
    """

    def __init__(self, region_size: int, query_size: int, *, bandwidth: float | None = None, learned: bool = False):
        super().__init__(region_size, query_size)
        bandwidth = region_size**0.25 if bandwidth is None else bandwidth
        check_range("Kernel", 1e-3, 1e6, bandwidth=bandwidth)
        log_bandwidth = torch.tensor(float(bandwidth)).log()
        if learned:
            self.log_bandwidth = nn.Parameter(log_bandwidth)
        else:
            self.register_buffer("log_bandwidth", log_bandwidth, persistent=False)

    def forward(
        self, query: Float[Tensor, "B R D"], keys: Float[Tensor, "B L D"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        products, carry = super().forward(query, keys)
        of_query, of_keys = (at_least_float32(vectors).square().sum(dim=-1) for vectors in (query, keys))
        distance = of_query[..., None] + of_keys[:, None] - 2 * products
        return -distance * (-2 * self.log_bandwidth).exp() / 2, carry


class General(Dot):
    """Bilinear score, e_i = h^T W a_i (Luong et al. 2015, "general"): a dot product after a learned map, so that
    annotation vectors and states may have any sizes."""

    def __init__(self, region_size: int, query_size: int):
        super().__init__(query_size, query_size)
        self.key = Linear(region_size, query_size, bias=False)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L H"]:
        return self.key(regions)


class KeyQuery(ScaledDot):
    """Scaled dot product of learned projections, e_i = (W_q h)^T W_k a_i / sqrt(A), one head of Vaswani et al. 2017,
    section 3.2.2: annotation vectors and states may have any sizes, and W_k^T W_q is a bilinear map of rank A at most.

    Differs from the paper: the values are the annotation vectors themselves, unprojected.

    attention_size: A, the size of the space in which states and annotation vectors are compared.
    """

    def __init__(self, region_size: int, query_size: int, *, attention_size: int = 64):
        super().__init__(attention_size, attention_size)
        check_range("KeyQuery", 1, 2**20, attention_size=attention_size)
        self.key = Linear(region_size, attention_size, bias=False)
        self.query = Linear(query_size, attention_size, bias=False)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        return super().project(self.key(regions))

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        return super().forward(self.query(query), keys)
