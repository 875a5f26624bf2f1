from router.field_texts import field_texts


class Described:
    first: int = 0
    """What it is; `this`."""
    second: int = 0
    third: int = 0
    """Over
    two lines."""


def test_each_field_has_the_text_below_it():
    assert field_texts(Described) == {"first": "What it is; `this`", "third": "Over\n    two lines"}
