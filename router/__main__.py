"""`python -m router`, which is also `tandem router`: settings in, a serving process out."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import NoReturn, get_origin, get_type_hints

from router.contract.errors import DeploymentError, Impossible, MissingDependency
from router.limits import check_division, share
from router.settings import SECRETS, Settings, help_texts
from router.sources import ENV_PREFIX, load

LOG = logging.getLogger("tandem.router")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop; returns the exit status.

    0, or with one sentence 2 when the set-up must change, and 1 when the router itself has failed.
    """
    arguments = vars(_parser().parse_args(argv))
    config, checks, schema = (arguments.pop(name) for name in ("config", "check_config", "print_schema"))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn.error").setLevel(
        logging.CRITICAL
    )  # it reports ended streams as errors of the application
    logging.getLogger("httpx").setLevel(logging.WARNING)

    def read() -> Settings:
        return load(arguments, os.environ, config)

    if schema is not None:
        return _status(lambda: _print_schema(schema))
    if checks:
        return _status(lambda: _print_checked(read()))
    return _status(lambda: _serve(read(), read, config))


def _print_schema(of: str) -> None:
    from router.schemas import fleet_schema, settings_schema  # noqa: PLC0415 - see _serve

    print(json.dumps(fleet_schema() if of == "fleet" else settings_schema(), indent=2))  # noqa: T201


def _print_checked(settings: Settings) -> None:
    """The settings in force and the engines that they list are on standard output; nothing listens, nobody is called.

    Raises:
        BadSettings: what the settings name cannot be used.
    """
    from router.api.security import build_security  # noqa: PLC0415 - see _serve
    from router.discovery.listings import listings_of  # noqa: PLC0415
    from router.schemas import effective  # noqa: PLC0415
    from router.store.connection import connect  # noqa: PLC0415

    build_security(settings)
    if settings.store:
        connect(settings.store)
    listed = [asdict(entry) for listing in listings_of(settings) for entry in listing.entries()]
    print(json.dumps({"settings": effective(settings), "engines": listed}, indent=2))  # noqa: T201


def _status(run: Callable[[], int | None]) -> int:
    try:
        return run() or 0
    except DeploymentError as error:
        print(f"tandem router: {error.message}", file=sys.stderr)  # noqa: T201 - this is a command
        return 2
    except Impossible as error:
        print(f"tandem router: {error.message}", file=sys.stderr)  # noqa: T201
        return 1


def _serve(settings: Settings, read: Callable[[], Settings], config: str | None) -> int:
    try:
        from router.build import serve  # noqa: PLC0415 - half a second that `--help` must not cost
        from router.governor import Again  # noqa: PLC0415
        from router.process.listeners import listen, listen_together  # noqa: PLC0415
        from router.watched import WatchedFiles  # noqa: PLC0415
        from router.workers.figures import Place  # noqa: PLC0415
        from router.workers.supervisor import Supervisor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingDependency(f"The router needs {error.name}; install tandem-router[router].") from error
    size = settings.workers or len(os.sched_getaffinity(0))
    files = WatchedFiles((Path(config),) if config is not None else ())
    if size == 1:
        ports = [settings.port, *([settings.metrics_port] if settings.metrics_port else ())]
        _run(serve(settings, [listen(settings.host, port) for port in ports], again=Again(read, files)))
        return 0
    check_division(settings, size)
    listeners = listen_together(settings.host, settings.port, size)
    more = listen_together(settings.host, settings.metrics_port, size) if settings.metrics_port else []
    with TemporaryDirectory(prefix="tandem-workers-") as folder:

        def work(slot: int) -> int:
            place = Place(Path(folder), slot, size)
            again = Again(lambda: share(read(), slot, size), files)
            return _status(
                lambda: _run(
                    serve(share(settings, slot, size), [listeners[slot], *more[slot : slot + 1]], place, again)
                )
            )

        host, port = listeners[0].getsockname()[:2]
        LOG.info("listening on %s:%d, mode %s, %d workers", host, port, settings.mode, size)
        return Supervisor(size, work).run()


def _run(serving: Coroutine[None, None, None]) -> None:
    import uvloop  # noqa: PLC0415

    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn ends gracefully on a signal, then raises it again for whoever had a say before: that is status 0.
        signal.signal(number, _end)
    uvloop.run(serving)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem router",
        description="Serve OpenAI's API in front of prefill and decode engines.",
        argument_default=argparse.SUPPRESS,
        epilog=f"Every setting is also an environment variable ({ENV_PREFIX}PORT) and a key of the --config file; "
        f"secrets are only that: {', '.join(ENV_PREFIX + name.upper() for name in SECRETS)}.",
    )
    parser.add_argument(
        "--config", metavar="FILE", default=None, help="settings file: YAML, TOML or JSON by its suffix"
    )
    parser.add_argument(
        "--check-config",
        action="store_true",
        default=False,
        help="print the settings in force, or what is wrong, and do not serve",
    )
    parser.add_argument(
        "--print-schema",
        nargs="?",
        const="settings",
        choices=("settings", "fleet"),
        default=None,
        help="print the JSON schema of the settings file, or of the fleet file",
    )
    texts, hints = help_texts(), get_type_hints(Settings)
    for field in fields(Settings):
        assert field.default is not MISSING
        if field.name in SECRETS:
            continue
        flag = "--" + field.name.replace("_", "-")
        listed = get_origin(hints[field.name]) is tuple
        shown = ", ".join(field.default) if listed else field.default
        parser.add_argument(
            flag,
            action="append" if listed else "store",
            metavar="STR" if listed else hints[field.name].__name__.upper(),
            help=f"{texts[field.name]} (default: {shown if shown != '' else 'none'})",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
