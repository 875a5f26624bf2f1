from __future__ import annotations

import torch

from engine_shim.engine.reference import invariant_linear
from engine_shim.engine.reference.invariant_linear import InvariantLinears, TiledLinear, is_row_invariant
from engine_shim.engine.reference.linear import PlainLinear


class Fickle(PlainLinear):
    """Sums in another order when there are few rows, as many kernels do."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(weight)
        self.seen: list[int] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        halves = (x[:, ::2] @ self._weight[:, ::2].T) + (x[:, 1::2] @ self._weight[:, 1::2].T)
        return halves if len(x) < 5 else super().__call__(x)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual + self(x)


def weight_of(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


def test_a_kernel_that_changes_its_order_is_found_out():
    weight = weight_of(24, 64)
    assert not is_row_invariant(Fickle(weight), weight)


def test_tiles_make_it_invariant_by_calling_it_with_one_shape_only():
    weight = weight_of(24, 64)
    fickle = Fickle(weight)
    tiled = TiledLinear(fickle)
    assert is_row_invariant(tiled, weight)
    assert set(fickle.seen) == {invariant_linear.TILE_ROWS}
    x = weight_of(21, 64)
    assert torch.allclose(tiled(x), x @ weight.T, atol=1e-5)


def test_the_verdict_decides_what_is_made(monkeypatch):
    monkeypatch.setattr(invariant_linear, "PackedLinear", Fickle)
    monkeypatch.setattr(invariant_linear, "can_pack", lambda _weight: True)
    linears = InvariantLinears()
    assert isinstance(linears(weight_of(24, 64)), TiledLinear)
    monkeypatch.setattr(invariant_linear, "is_row_invariant", lambda *_args: True)
    assert isinstance(linears(weight_of(24, 64)), TiledLinear), "the verdict of a shape is remembered"
    assert isinstance(linears(weight_of(24, 32)), Fickle)


def test_the_real_kernel_of_this_machine_is_made_invariant():
    for shape in ((24, 64), (300, 48), (96, 200)):
        weight = weight_of(*shape)
        assert is_row_invariant(InvariantLinears()(weight), weight)
