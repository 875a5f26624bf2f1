import pytest
import torch

from engine_shim.engine.reference.gate import Gate
from engine_shim.engine.reference.moe_config import MoeConfig, Scoring, moe_from_hf
from router.contract.errors import ModelUnusable

SIX = MoeConfig(6, 2, 8, Scoring.SIGMOID, normalised=True, num_groups=3, top_groups=1, scaling=2.0)


def gate_of(config: MoeConfig, bias: torch.Tensor | None = None) -> Gate:
    """Logits are the row itself."""
    return Gate(config, lambda x: x, bias)  # type: ignore[arg-type]


def test_experts_come_from_the_group_whose_best_two_are_best() -> None:
    logits = torch.tensor([[3.0, -3.0, 1.0, 1.2, 0.0, 0.1]])
    topk, weights = gate_of(SIX).choose(logits)
    assert topk.tolist() == [[3, 2]], "expert 0 is the best of all, but its group is not"
    scores = logits.sigmoid()[0]
    assert torch.allclose(weights[0], 2 * scores[[3, 2]] / (scores[3] + scores[2]))


def test_a_bias_chooses_and_does_not_weigh() -> None:
    config = MoeConfig(3, 1, 8, Scoring.SIGMOID, normalised=False)
    topk, weights = gate_of(config, torch.tensor([0.0, 0.0, 5.0])).choose(torch.tensor([[2.0, 1.0, 0.0]]))
    assert topk.tolist() == [[2]]
    assert weights.tolist() == [[0.5]]


def test_softmax_is_over_all_experts() -> None:
    config = MoeConfig(3, 2, 8, Scoring.SOFTMAX, normalised=False)
    topk, weights = gate_of(config).choose(torch.tensor([[0.0, 2.0, 1.0]]))
    assert topk.tolist() == [[1, 2]]
    assert torch.allclose(weights, torch.tensor([[0.0, 2.0, 1.0]]).softmax(-1)[:, [1, 2]])


@pytest.mark.parametrize("scoring", list(Scoring))
def test_a_row_s_bits_do_not_depend_on_its_neighbours(scoring: Scoring) -> None:
    config = MoeConfig(13, 4, 8, scoring, normalised=True)
    logits = torch.randn(301, 13, generator=torch.Generator().manual_seed(0))
    topk, weights = gate_of(config).choose(logits)
    for row in (0, 7, 150, 300):
        alone = gate_of(config).choose(logits[row : row + 1])
        assert torch.equal(alone[0][0], topk[row])
        assert torch.equal(alone[1][0], weights[row])


def test_no_rows() -> None:
    topk, weights = gate_of(SIX).choose(torch.zeros(0, 6))
    assert topk.shape == weights.shape == (0, 2)


@pytest.mark.parametrize(
    "changes",
    [{"n_group": 5}, {"topk_group": 9}, {"num_experts_per_tok": 7}, {"n_routed_experts": None}, {"n_group": 12}],
)
def test_experts_that_cannot_be_are_refused(changes: dict[str, object]) -> None:
    raw: dict[str, object] = {
        "n_routed_experts": 12,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 8,
        "n_group": 4,
        "topk_group": 2,
    }
    assert moe_from_hf("dots1", raw, 2) is not None
    with pytest.raises(ModelUnusable):
        moe_from_hf("dots1", raw | changes, 2)


def test_layers_without_experts() -> None:
    raw: dict[str, object] = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 8,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    }
    config = moe_from_hf("qwen3_moe", raw, 6)
    assert config is not None
    assert config.dense_layers == {0, 2, 3, 4}
    assert moe_from_hf("llama", raw, 6) is None
