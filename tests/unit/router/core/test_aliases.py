import pytest

from router.contract.errors import BadSettings
from router.core.aliases import read_aliases


def test_aliases_stand_for_models():
    assert read_aliases(["gpt-4o = org/model", "a=b=c"]) == {"gpt-4o": "org/model", "a": "b=c"}
    assert read_aliases([]) == {}


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        (["a"], "'a'"),
        (["=b"], "'=b'"),
        (["a="], "'a='"),
        (["a=b", "a=c"], "twice"),
        (["a=b", "b=c"], "an alias itself"),
    ],
)
def test_what_is_none_is_refused_by_name(listed, named):
    with pytest.raises(BadSettings, match=named):
        read_aliases(listed)
