import subprocess
import sys
import types

import pytest

from router.cli import main as cli
from router.contract.errors import BadSettings, NoPair


def run_as(monkeypatch, body, *argv):
    module = types.SimpleNamespace(main=body)
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)
    return cli.main(argv)


def test_a_command_gets_the_words_after_its_own(monkeypatch):
    seen = []
    assert run_as(monkeypatch, lambda argv: seen.append(list(argv)) or 7, "bench", "serve", "--rate", "2") == 7
    assert seen == [["--rate", "2"]]


def test_router_and_shim_become_the_program_of_their_package(monkeypatch):
    seen = []
    monkeypatch.setattr(cli.runpy, "run_module", lambda name, **how: seen.append((name, cli.sys.argv[1:], how)))
    monkeypatch.setattr(cli.sys, "argv", ["tandem", "shim", "--port", "1"])
    assert cli.main() == 0
    assert seen == [("engine_shim", ["--port", "1"], {"run_name": "__main__", "alter_sys": True})]


def test_each_command_is_found_by_its_own_words():
    for command in cli.COMMANDS:
        assert cli.find_command([*command.words, "--help"]) is command


@pytest.mark.parametrize(("error", "status"), [(BadSettings("Change it."), 2), (NoPair("Nobody."), 1)])
def test_a_tandem_error_ends_as_its_sentence(monkeypatch, capsys, error, status):
    def fail(argv):
        raise error

    assert run_as(monkeypatch, fail, "up") == status
    assert capsys.readouterr().err == f"tandem up: {error.message}\n"


def test_debug_raises_the_error_and_is_kept_from_the_command(monkeypatch):
    def fail(argv):
        raise BadSettings(repr(list(argv)))

    with pytest.raises(BadSettings, match=r"^\['--port', '1'\]$"):
        run_as(monkeypatch, fail, "up", "--port", "1", "--debug")


def test_an_interrupt_is_status_130(monkeypatch):
    def interrupted(argv):
        raise KeyboardInterrupt

    assert run_as(monkeypatch, interrupted, "up") == 130


def test_a_package_that_is_absent_is_named_with_its_remedy(monkeypatch, capsys):
    def absent(name, **_):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(cli.runpy, "run_module", absent)
    assert cli.main(["shim"]) == 2
    assert capsys.readouterr().err == (
        "tandem shim: The Python package 'torch' is not installed; install it with: pip install 'tandem-router[shim]'\n"
    )


def test_help_lists_every_command(capsys):
    assert cli.main(["--help"]) == 0
    printed = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert f"  {' '.join(command.words)} " in printed


def test_no_words_and_unknown_words_are_status_2(capsys):
    assert cli.main([]) == 2
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "nothing"])
    assert ended.value.code == 2
    assert "there is no command 'bench nothing'" in capsys.readouterr().err


def test_help_imports_no_command():
    code = "import sys; from router.cli.main import main; main(['--help']); print(sorted(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'router.cli.main'" in done.stderr
    for heavy in ("asyncio", "httpx", "fastapi", "torch", "router.cli.up", "msgspec"):
        assert f"'{heavy}'" not in done.stderr
