import pytest

from router.cli.flags import add_engine_flags, engine_choice_of, http_url, new_parser, port_number
from router.cli.setup import EngineChoice


def parser():
    made = new_parser("x", "Does x.")
    made.add_argument("--model", default="m", help="the model")
    made.add_argument("--seed", type=int, default=0, help="the seed")
    made.add_argument("--json", action="store_true", help="print JSON")
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
    assert "the seed (default: 0)" in text
    assert "None" not in text
    assert "False" not in text


@pytest.mark.parametrize("url", ["http://h", "https://h:1/v1", "http://[::1]:8000"])
def test_an_url_of_a_server_is_taken_as_it_is(url):
    assert http_url(url) == url


@pytest.mark.parametrize("port", ["0", "8000", "65535"])
def test_a_port_is_a_number(port):
    assert port_number(port) == int(port)


@pytest.mark.parametrize(
    ("read", "word"),
    [
        *(
            (http_url, word)
            for word in ("", "h:1", "ftp://h", "http://", "http://[::1", "http://h:x", "http://h:99999")
        ),
        *((port_number, word) for word in ("", "-1", "65536", "x", "٣")),
    ],
)
def test_what_no_command_can_use_is_status_2(read, word, capsys):
    made = new_parser("x", "Does x.")
    made.add_argument("--flag", type=read)
    with pytest.raises(SystemExit) as ended:
        made.parse_args([f"--flag={word}"])
    assert ended.value.code == 2 and "give " in capsys.readouterr().err
