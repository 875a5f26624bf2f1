"""Flags that several commands share, and how help shows defaults."""

from __future__ import annotations

import argparse

from router.cli.setup import EngineChoice
from router.contract.gpus import gpu_numbers
from router.contract.hosts import split_http_url


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default where there is one; a flag's own text says what its absence means."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        # 0 equals False, and is a default to show.
        absent = action.default is None or action.default is False
        return action.help if absent else super()._get_help_string(action)


def new_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return the parser of `tandem command`."""
    return argparse.ArgumentParser(prog=f"tandem {command}", description=description, formatter_class=HelpFormatter)


def http_url(text: str) -> str:
    """The `type` of a flag that names a server: an http or https URL with a host and, if it names one, a port."""
    try:
        good = split_http_url(text).port != 0
    except ValueError:
        good = False
    if not good:
        raise argparse.ArgumentTypeError(f"{text!r} is no server's URL; give something like http://127.0.0.1:8000")
    return text


def port_number(text: str) -> int:
    """The `type` of a flag that names a port to listen on; 0 is a free one."""
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return int(text)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags that say how engines are, whoever starts them; `--model` is the caller's."""
    add = parser.add_argument
    add("--model-name", metavar="NAME", help="served name; without it, the engine's own")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where engines compute")
    add(
        "--devices",
        metavar="N,N,...",
        help="GPUs by number, dealt to engines in turn; without it each begins with GPU 0",
    )
    add("--numerics", choices=("fast", "invariant"), default="fast", help="engines' floating-point order")
    add("--block-tokens-prefill", type=int, metavar="N", help="tokens a KV block of prefill engines")
    add("--block-tokens-decode", type=int, metavar="N", help="tokens a KV block of other engines")
    add("--kv-bytes", type=int, metavar="N", help="KV cache of each engine, bytes")
    add("--ep", type=int, metavar="N", help="expert ranks of each engine, for mixture-of-experts models; without it 1")
    add("--expert-transport", choices=("nixl", "nvlink"), help="how rows travel between expert ranks; without it nixl")
    add("--threads", type=int, metavar="N", help="threads of each engine; without it, the cores divided by the engines")


def engine_choice_of(options: argparse.Namespace) -> EngineChoice:
    """Return what `--model` and the flags of `add_engine_flags` say."""
    return EngineChoice(
        model=options.model,
        model_name=options.model_name,
        device=options.device,
        numerics=options.numerics,
        block_tokens_prefill=options.block_tokens_prefill,
        block_tokens_decode=options.block_tokens_decode,
        kv_bytes=options.kv_bytes,
        threads=options.threads,
        ep=options.ep,
        devices=gpu_numbers(options.devices or ""),
        expert_transport=options.expert_transport,
    )
