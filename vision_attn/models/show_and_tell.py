"""Show and Tell (Vinyals et al., CVPR 2015): an LSTM that sees the image once, before the first word. No attention."""

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts import Caption, Captioner
from vision_attn.contracts.nested import map_tensors
from vision_attn.layers.cells import CELLS, Cell, RecurrentState, over_steps
from vision_attn.layers.dropout import Dropout
from vision_attn.layers.likelihood import WordLogProb
from vision_attn.layers.linear import Linear
from vision_attn.layers.padding import mean_region, real_regions
from vision_attn.system.checks import require


class ShowAndTell(Captioner):
    """x_{-1} = CNN(I), x_t = W_e S_t, p_{t+1} = softmax(LSTM(x_t)) (Vinyals et al. 2015, eq. 10, eq. 11
    and eq. 12).

    The baseline without attention: it gets the same annotation vectors, but sees only their mean.

    cell: "lstm" (the paper) or "gru".

    Differs from the paper: the image is the mean annotation vector through a linear map, where the paper takes the last
    hidden layer of its network.
    """

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        hidden_size: int = 512,
        word_size: int = 512,
        cell: Cell = "lstm",
        dropout: float = 0.5,
    ):
        super().__init__()
        self.word_log_prob, self.region_size = WordLogProb(), region_size
        self.image = Linear(region_size, word_size)  # CNN(I)
        self.embedding = nn.Embedding(num_words, word_size)  # W_e; word 0 is the paper's start word S_0
        self.lstm = CELLS[cell](word_size, hidden_size, batch_first=True)
        self.output = Linear(hidden_size, num_words)
        self.dropout, self.pads = Dropout(dropout), False

    def leave_out_padding(self) -> None:
        self.pads = True

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[None, RecurrentState]:
        """Return the state after the image (eq. 10). There is no memory of the image."""
        require("regions", regions, "B L D", "float", D=self.region_size)
        mean = mean_region(regions, real_regions(regions) if self.pads else None)
        _, *state = over_steps(self.lstm, self.dropout(self.image(mean))[:, None])
        return None, RecurrentState(*map_tensors(lambda tensor: tensor[:, None].expand(-1, rows, -1), state))

    def step(
        self, word: Int[Tensor, "B R"], state: RecurrentState, memory: None
    ) -> tuple[Float[Tensor, "B R V"], RecurrentState, None]:
        hidden, state = self._lstm(word[..., None], state)
        return self.output(hidden.squeeze(2)), state, None

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        require("words", words, "B R T", "integer", B=regions.shape[0], hint=": ids of R captions per image")
        _, state = self.start(regions, words.shape[1])
        hidden, _ = self._lstm(F.pad(words, (1, -1)), state)
        log_prob, mean = self.word_log_prob(
            self.output, hidden, words, with_mean=self.with_mean, bars_pad=self.bars_pad
        )
        return Caption(log_prob, mean_log_prob=mean)

    def _lstm(
        self, words: Int[Tensor, "B R T"], state: RecurrentState
    ) -> tuple[Float[Tensor, "B R T H"], RecurrentState]:
        """Run the LSTM over `words` (eq. 11 and eq. 12), with dropout before and after it."""
        before = map_tensors(lambda tensor: tensor.flatten(0, 1), state)
        hidden, *after = over_steps(self.lstm, self.dropout(self.embedding(words.flatten(0, 1))), *before)
        rows = words.shape[:2]
        hidden, *after = map_tensors(lambda tensor: tensor.unflatten(0, rows), (self.dropout(hidden), *after))
        return hidden, RecurrentState(*after)
