import pytest

from router.contract.errors import BadSettings
from router.contract.gpus import gpu_numbers


@pytest.mark.parametrize(("text", "numbers"), [("", ()), ("3", (3,)), ("2, 0", (2, 0))])
def test_numbers_keep_their_order(text, numbers):
    assert gpu_numbers(text) == numbers


@pytest.mark.parametrize("text", ["cuda:0", "0,", "-1", "1,2,1", "²"])
def test_what_names_no_gpus_is_refused(text):
    with pytest.raises(BadSettings, match="--devices"):
        gpu_numbers(text)
