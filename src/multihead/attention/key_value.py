r"""Key-value attention: each state of a language model has key and value.

    h_t = [k_t ; v_t]
    M_t = tanh(W_Y [k_{t-L} .. k_{t-1}] + (W_h k_t) 1^T)
    a_t = softmax(w^T M_t)
    r_t = [v_{t-L} .. v_{t-1}] a_t^T
    h*_t = tanh(W_r r_t + W_x v_t)

Daniluk et al. 2017, "Frustratingly Short Attention Spans in Neural Language Modeling", section 2.2. With a third part
p_t, used for prediction only, h*_t = tanh(W_r r_t + W_x p_t) (section 2.3). For key-value attention in general, call
`multihead.attention.composition.Attention` with keys and values.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from multihead.attention.backends.explicit import masked_softmax
from multihead.attention.scores import Additive
from multihead.errors import ConfigurationError, ShapeError


class KeyValueAttention(nn.Module):
    """Attention of each state to the states before it, by the equations above.

    W_Y, W_h and w belong to ``score``, an `Additive`; W_r and W_x are ``context_projection`` and
    ``state_projection``.

    Args:
        dim: width of a part; a state is ``parts`` times as wide.
        window: L, the number of previous states attended to.
        parts: 2 = key and value; 3 = key, value and a part for prediction.

    Raises:
        ConfigurationError: a width or the window is below 1, or ``parts`` is neither 2 nor 3.
    """

    def __init__(self, dim: int, window: int, parts: Literal[2, 3] = 2) -> None:
        super().__init__()
        if window < 1 or parts not in (2, 3):
            raise ConfigurationError(
                f"window={window}, parts={parts}: expected a window of at least 1 and 2 or 3 parts"
            )
        self.dim, self.window, self.parts = dim, window, parts
        self.score = Additive(dim, dim, dim)
        self.context_projection = nn.Linear(dim, dim, bias=False)
        self.state_projection = nn.Linear(dim, dim, bias=False)

    def forward(
        self,
        states: Float[Tensor, "batch length width"],
        *,
        past: Float[Tensor, "batch past width"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch length dim"], Float[Tensor, "batch length window"] | None]:
        """h* of each state, and the weights.

        No state attends to a later one, so padding after the end of a sentence has no effect on it.

        Args:
            states: h: key, value and the optional third part, concatenated in this order.
            past: the states before these, to decode step by step; only the last ``window`` of them are used.
            need_weights: also return the weights.

        Returns:
            h*, and the weights or None. The last column of the weights belongs to the previous state, the column
            before it to the state before that. The first state attends to nothing: its weights and its r are 0.

        Raises:
            ShapeError: the states do not have ``parts * dim`` columns, or ``past`` does not match them.
        """
        batch, length = self._check(states, past)
        known = 0 if past is None else min(past.shape[1], self.window)
        everything = states if past is None else torch.cat((past[:, past.shape[1] - known :], states), 1)
        missing = self.window - known
        earlier = F.pad(everything[:, :-1], (0, 0, missing, 0))
        # The window before each state, [batch, length, window, dim].
        keys, values = (
            part.unfold(1, self.window, 1).transpose(2, 3)
            for part in (self.score.keys(earlier[..., : self.dim]), earlier[..., self.dim : 2 * self.dim])
        )
        key, last = states[..., : self.dim], states[..., -self.dim :]
        scores = self.score.from_keys(key.reshape(-1, 1, self.dim), keys.flatten(0, 1)).view(batch, length, self.window)
        place = torch.arange(length + self.window - 1, device=states.device).unfold(0, self.window, 1)
        weights = masked_softmax(scores, place >= missing)
        context = (weights.unsqueeze(2) @ values).squeeze(2)
        output = (self.context_projection(context) + self.state_projection(last)).tanh()
        return output, weights if need_weights else None

    def _check(self, states: Tensor, past: Tensor | None) -> tuple[int, int]:
        width = self.parts * self.dim
        for name, tensor in (("states", states), ("past", states if past is None else past)):
            if tensor.dim() != 3 or tensor.shape[2] != width or len(tensor) != len(states):
                raise ShapeError(
                    f"{name} has shape {list(tensor.shape)}, expected [batch, length, {width}]: "
                    f"{self.parts} parts of {self.dim}"
                )
        if states.shape[1] == 0:
            raise ShapeError(f"states has shape {list(states.shape)}, expected at least one state")
        return states.shape[0], states.shape[1]
