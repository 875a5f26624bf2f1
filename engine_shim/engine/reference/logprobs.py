"""Log probabilities of tokens under the model's own, untouched distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_shim.engine.port import TokenLogprob


def token_logprobs(logits: torch.Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """One TokenLogprob per row.

    Args:
        logits: float32 [rows, vocab].
        token_ids: the token of each row whose log probability is wanted.
        num_top: how many of the likeliest tokens to name.
    """
    logprobs = logits.log_softmax(-1)
    wanted = torch.tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen = logprobs.gather(1, wanted).squeeze(1).tolist()
    if not num_top:
        return [TokenLogprob(token_id, logprob) for token_id, logprob in zip(token_ids, chosen, strict=True)]
    top = logprobs.topk(min(num_top, logits.shape[1]))
    return [
        TokenLogprob(token_id, logprob, tuple(zip(ids, values, strict=True)))
        for token_id, logprob, ids, values in zip(
            token_ids, chosen, top.indices.tolist(), top.values.tolist(), strict=True
        )
    ]
