"""What several of these tests compare with."""

from __future__ import annotations

import pytest

from tests.support.tiny_models import TINY_LLAMA, ask, generate, tiny_engine


@pytest.fixture
def monolithic():
    """Tokens of one prompt computed alone, in one chunk, without a cache."""

    def tokens(prompt, config=TINY_LLAMA, **request):
        engine = tiny_engine(config, prefix_cache=False)
        return generate(engine, ask("alone", prompt, **request))[0]

    return tokens
