from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_shim.engine.reference.kernels import Kernels, kernels_of
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.self_check import check_invariance
from engine_shim.engine.reference.settings import Numerics
from router.contract.errors import BadSettings
from router.contract.kv import KVLayout
from tests.support.tiny_models import TINY_LLAMA, tiny_weights

LAYOUT = KVLayout(2, 2, 8, 16, 99, "float32")
CPU = torch.device("cpu")


def model_with(kernels: Kernels) -> Model:
    return Model(TINY_LLAMA, tiny_weights(), 256, kernels)


@pytest.mark.parametrize("num_positions", [1, 2, 40, 256])
def test_invariant_kernels_pass(num_positions):
    check_invariance(model_with(kernels_of(Numerics.INVARIANT)), LAYOUT, num_positions, CPU)


def test_one_kernel_that_depends_on_its_company_is_noticed():
    invariant = kernels_of(Numerics.INVARIANT)

    class Swayed:
        """Attention that is off by a last bit when several sequences are in the batch."""

        def __init__(self, batch, cache, group_size):
            self.inner = invariant.plan_attention(batch, cache, group_size)
            self.is_swayed = len(batch.chunks) > 1

        def attend(self, layer, queries):
            out = self.inner.attend(layer, queries)
            return out * (1 + 2**-22) if self.is_swayed else out

    with pytest.raises(BadSettings, match="fast numerics"):
        check_invariance(model_with(replace(invariant, plan_attention=Swayed)), LAYOUT, 256, CPU)
