"""The console script `tandem`: find the command's module by name and run it.

Commands are imported only once they are chosen, so that `tandem --help` stays quick and a router-only installation
never meets torch. The shim's commands are reached by name alone, since the router imports nothing of the shim.
"""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.contract.errors import DeploymentError, MissingDependency, TandemError


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the words that select it, the module whose `main(argv) -> int` it is, and what it does.

    A package instead of a module means that the process becomes `python -m` of it.
    """

    words: tuple[str, ...]
    module: str
    summary: str


COMMANDS: tuple[Command, ...] = (
    Command(("up",), "router.cli.up", "start store, engines and router on this machine, and keep them together"),
    Command(("router",), "router", "start a router"),
    Command(("shim",), "engine_shim", "start one engine with its shim"),
    Command(("doctor",), "router.cli.doctor", "find out whether a deployment is sound, and what to do"),
    Command(("story",), "router.cli.story", "print what happened to one request"),
    Command(
        ("fence",), "router.cli.fence", "declare an engine dead whose node is lost, so that others stop waiting for it"
    ),
    Command(("simulate",), "engine_shim.simulation.main", "play routers and shims in a seeded world full of faults"),
    Command(("bench", "serve"), "router.bench.serve", "load an OpenAI URL, or compare push, pull, local, monolithic"),
    Command(("bench", "router"), "router.bench.router", "measure what the router itself costs"),
    Command(("bench", "transfer"), "engine_shim.bench.transfer", "measure how quickly KV cache moves between agents"),
    Command(("bench", "experts"), "engine_shim.bench.experts", "measure dispatch and combine between expert ranks"),
    Command(("bench", "mock"), "router.bench.mock_engines", "serve two engines that answer and fail as told"),
    Command(("bench", "engine"), "engine_shim.bench.engine", "measure the reference engine beside transformers"),
)


def find_command(argv: Sequence[str]) -> Command | None:
    """Return the command whose words `argv` begins with, or None."""
    return next((command for command in COMMANDS if tuple(argv[: len(command.words)]) == command.words), None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's arguments) names and return the exit status.

    A TandemError ends as its sentence on stderr: status 2 when the operator must change the set-up, else 1.
    With `--debug` it is raised instead.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    command = find_command(words)
    if command is None:
        return _explain(words)
    try:
        return _run(command, words[len(command.words) :])
    except TandemError as error:
        if debug:
            raise
        print(f"tandem {' '.join(command.words)}: {error.message}", file=sys.stderr)
        return 2 if isinstance(error, DeploymentError) else 1
    except KeyboardInterrupt:
        return 130


def _run(command: Command, argv: Sequence[str]) -> int:
    try:
        if "." not in command.module:
            sys.argv[1:] = argv
            runpy.run_module(command.module, run_name="__main__", alter_sys=True)
            return 0
        run: Callable[[Sequence[str]], int] = importlib.import_module(command.module).main
    except ModuleNotFoundError as error:
        extra = "shim" if command.module.startswith("engine_shim") else "router,up"
        raise MissingDependency(
            f"The Python package {error.name!r} is not installed; install it with: pip install 'tandem-router[{extra}]'"
        ) from error
    return run(argv)


def _explain(words: Sequence[str]) -> int:
    """Print the version or the help that was asked for, else say that there is no such command (status 2)."""
    parser = argparse.ArgumentParser(
        prog="tandem",
        usage="tandem [--debug] COMMAND ...",
        description="A router for prefill/decode disaggregated LLM inference, with shims that push the KV cache.",
        epilog="commands:\n"
        + "\n".join(f"  {' '.join(command.words):<15} {command.summary}" for command in COMMANDS)
        + "\n\n'tandem COMMAND --help' lists a command's settings with defaults and units.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("--version", action="store_true", help="print the version")
    if "--version" in words:
        from importlib.metadata import version  # noqa: PLC0415  costs a third of what --help may take

        print(f"tandem {version('tandem-router')}")
        return 0
    if "-h" in words or "--help" in words:
        parser.print_help()
        return 0
    if words:
        parser.error(f"there is no command {' '.join(words[:2])!r}; 'tandem --help' lists them")
    parser.print_help(sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
