"""Gate: which experts a token visits, and how much each of them counts.

    scores   = softmax(x G^T), or sigmoid(x G^T)                    float32, whatever the weights' dtype is
    choice   = scores + bias; only experts of the best groups       a group counts as much as its best two experts
    topk     = the K largest of choice
    weights  = scores of those / their sum * scaling

Source: Qwen3-MoE; DeepSeek-V3, sections 2.1.2 (sigmoid, bias that only chooses) and 2.1.2 of V2 (groups).
"""

from __future__ import annotations

import torch

from engine_shim.engine.reference.linear import Linear
from engine_shim.engine.reference.moe_config import MoeConfig, Scoring
from engine_shim.engine.reference.serial import serial_sigmoid


class Gate:
    """Chooses experts for rows, each on its own."""

    def __init__(self, config: MoeConfig, linear: Linear, bias: torch.Tensor | None) -> None:
        """`linear` gives float32 logits [rows, E] of float32 rows; `bias` is float32 [E]."""
        self._config = config
        self._linear = linear
        self._bias = bias

    def choose(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """topk int64 [rows, K], and its weights, float32 [rows, K]."""
        config = self._config
        if not len(x):
            return x.new_zeros((0, config.top_k), dtype=torch.int64), x.new_zeros((0, config.top_k)).float()
        logits = self._linear(x.float())
        scores = logits.softmax(-1) if config.scoring is Scoring.SOFTMAX else serial_sigmoid(logits)
        choice = scores if self._bias is None else scores + self._bias
        topk = self._within_groups(choice).topk(config.top_k, dim=-1).indices
        weights = scores.gather(1, topk)
        if config.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if config.scoring is Scoring.SIGMOID else 0.0))
        return topk, weights * config.scaling

    def _within_groups(self, choice: torch.Tensor) -> torch.Tensor:
        config = self._config
        if config.num_groups == 1:
            return choice
        grouped = choice.view(len(choice), config.num_groups, -1)
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(config.top_groups, dim=-1).indices
        outside = torch.ones(grouped.shape[:2], dtype=torch.bool, device=choice.device).scatter_(1, best, value=False)
        return grouped.masked_fill(outside.unsqueeze(-1), -torch.inf).view(choice.shape)
