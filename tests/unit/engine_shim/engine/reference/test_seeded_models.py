import pytest

from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.seeded_models import SEEDED, seeded_model
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings
from engine_shim.engine.reference.shapes import SHAPES
from router.cli.setup import SEEDED_MODELS
from tests.support.tiny_models import ask, generate, prompt_of


def test_the_command_knows_the_names() -> None:
    assert set(SEEDED_MODELS) == {*SEEDED, *SHAPES}


def test_a_model_is_written_once() -> None:
    assert seeded_model("tiny-moe") == seeded_model("tiny-moe")


@pytest.mark.parametrize("name", list(SEEDED))
def test_tokens_of_a_mixture_do_not_depend_on_the_batch(name: str) -> None:
    """Which expert gets how many rows depends on everybody's tokens; the bits of a row must not."""
    engine = open_engine(
        ReferenceSettings(model=name, numerics=Numerics.INVARIANT, num_threads=1, prefix_cache=False, num_blocks=64)
    )
    requests = [ask(f"s{number}", prompt_of(9 + 20 * number, number), max_tokens=6) for number in range(3)]
    together = generate(engine, *requests)
    assert [generate(engine, request)[0] for request in requests] == together
    assert len({tuple(tokens) for tokens in together}) == 3
