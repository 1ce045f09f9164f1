"""Scores that use the positions of regions, the previous map, or a predicted position."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.scores import ROWS, UNPROJECTED, Additive, Score
from vision_attn.contracts.nested import Nested
from vision_attn.layers.linear import Linear
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class Location(Score):
    """Location-based score, e = W h + b (Luong et al. 2015, eq. 8): one number per region position, independent of
    the image.

    Differs from the paper, which has no bias b.
    """

    def __init__(self, region_size: int, query_size: int, *, num_regions: int = 196):
        super().__init__()
        self.query = Linear(query_size, num_regions)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L 0"]:
        """Return empty keys: only the number of regions matters. Raises UserError if it is not `num_regions`."""
        if regions.shape[1] != self.query.out_features:
            raise UserError(
                f"Location was built for num_regions={self.query.out_features}, but images have {regions.shape[1]}"
            )
        return regions[..., :0]

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L 0"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L 0", "float", B=query.shape[0], hint=UNPROJECTED)
        return self.query(query), None


class EmbeddedLocation(Score):
    """Location-based score with an embedding p_i of each position: e_i = p_i . (W h + b) / sqrt(A), independent of the
    image. Equals `Location` with a matrix of rank A. Takes any number of regions up to `num_regions`.

    place_size: A, the size of an embedding.
    """

    def __init__(self, region_size: int, query_size: int, *, place_size: int = 32, num_regions: int = 196):
        super().__init__()
        check_range("EmbeddedLocation", 1, 2**20, place_size=place_size, num_regions=num_regions)
        self.query = Linear(query_size, place_size)
        self.positions = nn.Parameter(torch.randn(num_regions, place_size))

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L 0"]:
        """Return empty keys: only the number of regions matters. Raises UserError if it is above `num_regions`."""
        if regions.shape[1] > len(self.positions):
            raise UserError(
                f"EmbeddedLocation was built for num_regions={len(self.positions)}, but images have {regions.shape[1]}"
            )
        return regions[..., :0]

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L 0"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L 0", "float", B=query.shape[0], hint=UNPROJECTED)
        places = self.positions[: keys.shape[1]]
        return self.query(query) @ places.mT / places.shape[1] ** 0.5, None


class ContentLocation(Score):
    """Location-aware additive score: it also sees the previous attention map, through a convolution.

    f = F * alpha_{t-1} (Chorowski et al. 2015, eq. 8) and e_i = v^T tanh(W_a a_i + W_h h + U f_i + b) (eq. 9).

    num_filters, filter_size: the number of filters F, and their width, which must be odd.

    Differs from the paper: the convolution runs over the rows and columns of `grid`, not along time. A grid of (1, -1)
    is the paper's: one row of any number of columns.

    Computes a tanh of three terms for each (row, region) pair. The fast version recomputes the pairs in the backward
    pass instead of storing them; it costs several times as much as the fast additive score.

    Fast version: `fast.location.FastContentLocation`.
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
            raise UserError(f"ContentLocation: filter_size={filter_size} must be odd, so that filters have a centre")
        self.grid = tuple(grid)
        self.key = Linear(region_size, attention_size)
        self.query = Linear(query_size, attention_size, bias=False)
        self.filters = nn.Conv2d(1, num_filters, filter_size, padding=filter_size // 2, bias=False)
        self.feature = Linear(num_filters, attention_size, bias=False)
        self.weight = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) / attention_size**0.5)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """Return k_i = W_a a_i + b. Raises UserError if the number of regions is not that of `grid`."""
        if -1 not in self.grid and regions.shape[1] != self.grid[0] * self.grid[1]:
            raise UserError(
                f"ContentLocation was built for grid={self.grid}, but images have {regions.shape[1]} regions"
            )
        return self.key(regions)

    def start(self, keys: Float[Tensor, "B L A"], rows: int) -> Float[Tensor, "B R L"]:
        """Return the map before the first word: zeros."""
        return at_least_float32(keys.new_zeros(len(keys), rows, keys.shape[1]))

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Float[Tensor, "B R L"] | None = None
    ) -> tuple[Float[Tensor, "B R L"], Float[Tensor, "B R L"]]:
        """Compute the scores of one word.

        carry: alpha_{t-1}.
        """
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L A", "float", B=query.shape[0], A=len(self.weight), hint=UNPROJECTED)
        previous = self.start(keys, query.shape[1]) if carry is None else carry
        features = self.filters(previous.flatten(0, 1).unflatten(1, (1, *self.grid)))
        features = features.flatten(2).mT.unflatten(0, query.shape[:2])  # f_i, (B, R, L, filters)
        scores = self.pairs(self.query(query), keys, features)
        return scores, previous

    def after(self, carry: Float[Tensor, "B R L"], alpha: Float[Tensor, "B R L"]) -> Float[Tensor, "B R L"]:
        """Return alpha_t."""
        return alpha

    def pairs(self, query: Tensor, keys: Tensor, features: Tensor) -> Tensor:
        return (keys[:, None] + query[:, :, None] + self.feature(features)).tanh() @ self.weight


class GaussianMixture(Score):
    """The log of a mixture of K Gaussians that move forward only (Graves 2013, arXiv:1308.0850).

    (alpha^, beta^, kappa^) = W h + b (eq. 48), alpha = exp(alpha^) (eq. 49), beta = exp(beta^) (eq. 50),
    kappa_t = kappa_t-1 + exp(kappa^) (eq. 51), phi(t, u) = sum_k alpha_k exp(-beta_k (kappa_k - u)^2) (eq. 46). The
    score is log phi, so that `Soft` gives phi divided by its sum. u counts columns from 0. The keys are empty: only the
    number of columns matters.

    num_components: K, the number of Gaussians.
    step: the initial distance, in columns, that a component moves for each character.

    Differs from the paper: weights sum to 1 over columns (otherwise a narrow component between two columns sees
    nothing); alpha sums to 1 over components; the exponents of eq. 50 and eq. 51 are clipped, so that beta lies between
    e^-10 and e^10, a step is at most e^10 columns, and squares stay finite.
    """

    def __init__(self, region_size: int, query_size: int, *, num_components: int = 3, step: float = 2.0):
        super().__init__()
        check_range("GaussianMixture", 1, 1000, num_components=num_components)
        check_range("GaussianMixture", 0.001, 1000.0, step=step)
        self.num_components = num_components
        self.query = Linear(query_size, 3 * num_components)
        with torch.no_grad():
            bias = self.query.bias.view(3, num_components)
            bias[0].zero_()
            bias[1].fill_(-1.0)  # a standard deviation of 1.2 columns
            bias[2].fill_(torch.tensor(step).log())
            bias.add_(0.1 * torch.randn_like(bias))

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L 0"]:
        return regions[..., :0]

    def start(self, keys: Float[Tensor, "B L 0"], rows: int) -> Float[Tensor, "B R K"]:
        """Return kappa_0 = 0, so that every component is at the first column."""
        return at_least_float32(keys.new_zeros(len(keys), rows, self.num_components))

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L 0"], carry: Float[Tensor, "B R K"] | None = None
    ) -> tuple[Float[Tensor, "B R L"], Float[Tensor, "B R K"]]:
        """Return log phi and kappa_t.

        carry: kappa_{t-1}.
        """
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L 0", "float", B=query.shape[0], hint=UNPROJECTED)
        alpha, beta, kappa = at_least_float32(self.query(query)).chunk(3, dim=-1)
        before = self.start(keys, query.shape[1]) if carry is None else carry
        kappa = before + kappa.clamp(max=10).exp()
        column = torch.arange(keys.shape[1], device=keys.device, dtype=kappa.dtype)
        distance = (kappa[..., None] - column).square()  # (B, R, K, L)
        terms = alpha.log_softmax(dim=-1)[..., None] - beta.clamp(-10, 10).exp()[..., None] * distance
        return terms.logsumexp(dim=2), kappa


class LocalPredictive(Additive):
    """Local attention around a predicted position, local-p (Luong et al. 2015): the additive score plus the log of a
    Gaussian.

    p_t = L sigmoid(v_p^T tanh(W_p h)) (eq. 9), and e_ti - (i - p_t)^2 / (2 sigma^2) with sigma = D / 2 (eq. 10).

    window: D, in columns. The paper reads columns within D of p_t.

    Differs from the paper: the Gaussian multiplies weights before they are normalised, not after; columns outside the
    window keep their small weights; the score inside is additive; and the place of column i is its centre, i + 0.5
    counted from 0, so that p_t, between 0 and L, reaches the first and the last column alike.

    Fast version: `fast.location.FastLocalPredictive`.
    """

    counts_regions = True

    def __init__(self, region_size: int, query_size: int, *, attention_size: int = 512, window: float = 4.0):
        super().__init__(region_size, query_size, attention_size=attention_size)
        check_range("LocalPredictive", 0.001, 10000.0, window=window)
        self.sigma = window / 2
        self.position = nn.Sequential(Linear(query_size, attention_size), nn.Tanh(), Linear(attention_size, 1))

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        scores, _ = super().forward(query, keys)
        number = keys.shape[1]
        centre = number * at_least_float32(self.position(query)).sigmoid()  # p_t, (B, R, 1)
        column = torch.arange(number, device=keys.device, dtype=centre.dtype) + 0.5
        return scores - (column - centre).square() / (2 * self.sigma**2), None


class Coverage(Score):
    """The additive score with coverage: it also sees how much attention each column has had so far.

    c_t = sum_{s<t} alpha_s (See et al. 2017, eq. 10) and e_ti = v^T tanh(W_a a_i + W_h h + w_c c_ti + b) (eq. 11). With
    w_c = 0 it is `Additive`; it starts there.

    Computes the tanh of every (row, column) pair, as `ContentLocation` does.

    Fast version: `fast.location.FastCoverage`.
    """

    def __init__(self, region_size: int, query_size: int, *, attention_size: int = 512):
        super().__init__()
        self.key = Linear(region_size, attention_size)
        self.query = Linear(query_size, attention_size, bias=False)
        self.coverage = nn.Parameter(torch.zeros(attention_size))  # w_c
        self.weight = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) / attention_size**0.5)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """Return k_i = W_a a_i + b."""
        return self.key(regions)

    def start(self, keys: Float[Tensor, "B L A"], rows: int) -> Float[Tensor, "B R L"]:
        """Return c_1 = 0: nothing has been read."""
        return at_least_float32(keys.new_zeros(len(keys), rows, keys.shape[1]))

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Float[Tensor, "B R L"] | None = None
    ) -> tuple[Float[Tensor, "B R L"], Float[Tensor, "B R L"]]:
        """Compute the scores of one word.

        carry: c_t.
        """
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L A", "float", B=query.shape[0], A=len(self.weight), hint=UNPROJECTED)
        covered = self.start(keys, query.shape[1]) if carry is None else carry
        scores = self.pairs(self.query(query), keys, covered)
        return scores, covered

    def after(self, carry: Float[Tensor, "B R L"], alpha: Float[Tensor, "B R L"]) -> Float[Tensor, "B R L"]:
        """Return c_{t+1} = c_t + alpha_t."""
        return carry + alpha

    def pairs(self, query: Tensor, keys: Tensor, covered: Tensor) -> Tensor:
        return F.tanh(keys[:, None] + query[:, :, None] + covered[..., None] * self.coverage) @ self.weight
