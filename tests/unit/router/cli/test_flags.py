from router.cli.flags import add_engine_flags, engine_choice_of, new_parser
from router.cli.setup import EngineChoice


def parser():
    made = new_parser("x", "Does x.")
    made.add_argument("--model", default="m", help="the model")
    add_engine_flags(made)
    return made


def test_defaults_leave_everything_to_the_engine():
    assert engine_choice_of(parser().parse_args([])) == EngineChoice("m")


def test_every_flag_reaches_the_choice():
    words = "--model-name n --device cuda --numerics invariant --block-tokens-prefill 8 --block-tokens-decode 32"
    options = parser().parse_args([*words.split(), "--kv-bytes", "9", "--threads", "2"])
    assert engine_choice_of(options) == EngineChoice("m", "n", "cuda", "invariant", 8, 32, 9, 2)
    options = parser().parse_args(["--ep", "4", "--devices", "0,2", "--expert-transport", "nvlink"])
    assert engine_choice_of(options) == EngineChoice("m", ep=4, devices=(0, 2), expert_transport="nvlink")


def test_help_shows_defaults_only_where_there_are_some():
    text = " ".join(parser().format_help().split())
    assert text.startswith("usage: tandem x ")
    assert "the model (default: m)" in text
    assert "None" not in text
