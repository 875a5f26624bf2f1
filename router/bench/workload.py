"""What is asked of a server, and one server to ask it of."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx

from router.bench.connection import Client, Target
from router.bench.load import Dialect, Load
from router.bench.measures import Objectives, Record, Summary, summarize
from router.bench.prompts import UNCOUNTED, Vocabulary, learn_vocabulary, read_prompts
from router.bench.schedule import Due, Span, poisson
from router.cli.terminal import LiveLine, bar
from router.contract.errors import BadSettings, Blame, LegUnreachable, ModelUnknown, Unauthorized

_CONTROL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests, apart from when they are sent."""

    num_requests: int
    warmup: int
    """Requests sent one by one before those that count."""
    input_tokens: Span
    output_tokens: Span
    prompts: Path | None
    """A file of prompts that are used in turn; None makes synthetic ones of `input_tokens`."""
    chat: bool
    stream: bool
    ignore_eos: bool
    concurrency_cap: int | None
    timeout_s: float
    objectives: Objectives


@dataclass(frozen=True, slots=True)
class Measured:
    """One load at one rate."""

    rate_per_s: float
    seed: int
    summary: Summary
    records: tuple[Record, ...]


def add_workload_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags that `workload_of` reads."""
    add = parser.add_argument
    add("--requests", type=int, default=100, metavar="N", help="requests of each load")
    add("--warmup", type=int, default=4, metavar="N", help="requests before each load that do not count")
    add("--input-tokens", default="512", metavar="N|LOW-HIGH", help="prompt length, tokens")
    add("--output-tokens", default="64", metavar="N|LOW-HIGH", help="answer length, tokens")
    add("--prompts", type=Path, metavar="FILE", help="prompts, one a line, instead of synthetic ones")
    add("--endpoint", choices=("chat", "completions"), default="chat", help="chat completions or completions")
    add("--no-stream", action="store_true", help="ask for whole answers (then TTFT is E2E)")
    add("--keep-eos", action="store_true", help="let the model end early: do not send vLLM's ignore_eos")
    add("--concurrency-cap", type=int, metavar="N", help="most requests in flight; without it, no cap")
    add("--timeout-s", type=float, default=600.0, metavar="S", help="longest wait for one answer, seconds")
    add("--slo-ttft-ms", type=float, metavar="MS", help="time to first token that goodput asks for")
    add("--slo-tpot-ms", type=float, metavar="MS", help="time per output token that goodput asks for")


def workload_of(options: argparse.Namespace) -> Workload:
    """Return what the flags of `add_workload_flags` say.

    Raises:
        BadSettings: a length or a count is out of range.
    """
    if options.requests < 1 or options.warmup < 0 or (options.concurrency_cap or 1) < 1 or not options.timeout_s > 0:
        raise BadSettings("--requests, --concurrency-cap and --timeout-s begin at 1, --warmup at 0; correct them.")
    return Workload(
        num_requests=options.requests,
        warmup=options.warmup,
        input_tokens=Span.parse(options.input_tokens),
        output_tokens=Span.parse(options.output_tokens),
        prompts=options.prompts,
        chat=options.endpoint == "chat",
        stream=not options.no_stream,
        ignore_eos=not options.keep_eos,
        concurrency_cap=options.concurrency_cap,
        timeout_s=options.timeout_s,
        objectives=Objectives(options.slo_ttft_ms, options.slo_tpot_ms),
    )


class Subject:
    """A server under load: an async context manager that has found the model's name and its tokens inside it."""

    def __init__(self, workload: Workload, url: str, model: str | None = None, api_key: str | None = None) -> None:
        """`model` None means the first that the server lists."""
        self._workload = workload
        self._target = Target.parse(url)
        self._api_key = api_key
        self._client = Client(self._target, api_key)
        self._prompts = read_prompts(workload.prompts) if workload.prompts else None
        self.model = model or ""
        self.vocabulary: Vocabulary = UNCOUNTED

    async def __aenter__(self) -> Subject:
        """Ask the server for its model and its tokenizer.

        Raises:
            LegUnreachable, Unauthorized, ModelUnknown: the server does not answer, wants a key, lists no model.
        """
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        try:
            async with httpx.AsyncClient(
                base_url=self._target.base_url, headers=headers, timeout=_CONTROL_TIMEOUT_S
            ) as control:
                self.model = self.model or await _first_model(control)
                if self._prompts is None:
                    self.vocabulary = await learn_vocabulary(control, self.model, chat=self._workload.chat)
        except httpx.TransportError as error:
            raise LegUnreachable(
                f"{self._target.base_url} does not answer ({type(error).__name__}); start it or correct --url.",
                side=Blame.ROUTER,
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    @property
    def counts_words(self) -> bool:
        """True when synthetic prompts are measured in words, for want of the server's tokenizer."""
        return self._prompts is None and not self.vocabulary.is_counted

    async def measure(self, rate_per_s: float, seed: int, line: LiveLine) -> Measured:
        """Warm up, load the server with the schedule of `seed`, and return what was seen."""
        work = self._workload
        dialect = Dialect(self.model, work.chat, work.stream, work.ignore_eos)
        load = Load(self._client, dialect, timeout_s=work.timeout_s, cap=work.concurrency_cap)
        one_by_one = Load(self._client, dialect, timeout_s=work.timeout_s, cap=1)
        lengths = (work.input_tokens, work.output_tokens)
        warmup = poisson(float("inf"), work.warmup, lengths, seed)
        await one_by_one.run(
            warmup, self._texts(warmup, f"warmup {seed}"), lambda ended: line.show(f"warm-up {bar(ended, work.warmup)}")
        )
        schedule = poisson(rate_per_s, work.num_requests, lengths, seed)
        records = await load.run(
            schedule,
            self._texts(schedule, f"prompts {seed}"),
            lambda ended: line.show(f"{rate_per_s:g} requests/s {bar(ended, work.num_requests)}"),
        )
        line.clear()
        return Measured(rate_per_s, seed, summarize(records, work.objectives), records)

    def _texts(self, schedule: Sequence[Due], seed: str) -> list[str]:
        if self._prompts is not None:
            return [self._prompts[due.index % len(self._prompts)] for due in schedule]
        dice = random.Random(seed)
        return [self.vocabulary.prompt(due.input_tokens, dice) for due in schedule]


async def _first_model(control: httpx.AsyncClient) -> str:
    answer = await control.get("/v1/models")
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise Unauthorized(f"{control.base_url} wants a key; give one with --api-key or in OPENAI_API_KEY.")
    models = answer.json().get("data") if answer.status_code == httpx.codes.OK else None
    if not models:
        raise ModelUnknown(f"{control.base_url} lists no model (status {answer.status_code}); give one with --model.")
    return str(models[0]["id"])
