"""Refusals: why nobody can take a request, as precisely as the fleet tells."""

from __future__ import annotations

from router.contract.errors import BadRequest, ModelUnknown, NoDecode, NoPair, NoPrefill, TandemError
from router.contract.ids import InstanceId
from router.contract.instance import Mode
from router.core.fleet import Fleet, Pool
from router.core.pairs import Pairing


def unknown(fleet: Fleet, model: str) -> TandemError:
    """Nobody serves this model."""
    if not fleet.pools:
        return NoPrefill(
            "No engine is live; start a prefill and a decode instance, or wait until they have registered."
        )
    names = ", ".join(sorted(fleet.pools))
    return ModelUnknown(f"The model {model!r} does not exist here; the models served are: {names}.", param="model")


def missing(pool: Pool, mode: Mode | None) -> TandemError:
    """Nobody can take a request in this mode; None: in any."""
    if not pool.has_prefill and mode is not Mode.LOCAL:
        return NoPrefill(f"No prefill instance is live for {pool.model!r}; start one or try again later.")
    if not pool.has_decode:
        return NoDecode(f"No decode instance is live for {pool.model!r}; start one or try again later.")
    how = f" in {mode} mode" if mode is not None else ""
    return NoPair(
        f"No prefill and decode instance of {pool.model!r} can exchange KV cache{how}; "
        "start both with the same model, dtype and mode."
    )


def unheld(pool: Pool) -> TandemError:
    """Nobody is known to hold the answer that a request goes on from."""
    what = f"No engine of {pool.model!r} is known to hold the previous response; send the whole conversation as input."
    return BadRequest(what, param="previous_response_id")


def exhausted(pool: Pool, pairing: Pairing, excluded: frozenset[InstanceId]) -> TandemError:
    """All pairs have an excluded instance."""
    if pairing.prefills.without(excluded):
        return NoDecode(f"No other decode instance serves {pool.model!r}; add one or try again.")
    return NoPrefill(f"No other prefill instance serves {pool.model!r}; add one or try again.")
