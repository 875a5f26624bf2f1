"""Settings of the router: what can be set, and what is in range. `router/sources.py` says where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import inf

from router.contract.engine_hosts import read_engine_hosts
from router.contract.errors import BadSettings
from router.contract.instance import Mode
from router.contract.seal import check_key
from router.field_texts import field_texts

SECRETS = ("deployment_key", "admin_key", "engine_key")
"""Settings that are no flags, since everybody on a machine reads command lines, and that no message shows."""

MODES = (*Mode, "auto")
DATA_PATHS = ("hook", "asgi")
PREFILL_CANCELS = ("anytime", "never")
PRIORITY_SOURCES = ("none", "header", "body")
MAX_WORKERS = 256


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be set. Each field's comment is its help text."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    metrics_port: int = 0
    """Port on which alone /metrics, /admin and /ui are, beside everything else; 0: they are on `port`."""
    store: str = ""
    """redis://, redis+sentinel:// or redis+cluster:// URL of fleet and ledger; empty: none, engines are as listed."""
    namespace: str = "tandem"
    """Prefix of all keys in the store."""
    deployment_key: str = field(default="", repr=False)
    """Secret that routers and shims share, by environment or file; without it shims refuse what they are told."""
    router_lease_s: float = 10.0
    """Seconds after which another router releases what a router that has died held."""
    prefill: tuple[str, ...] = ()
    """URLs of prefill engines, with our shim or plain vLLM, beside those that the store knows."""
    decode: tuple[str, ...] = ()
    """URLs of decode engines, or without prefill of engines that do both."""
    fleet_file: str = ""
    """YAML, JSON or TOML file that lists engines; read again when it changes."""
    kubernetes_selector: str = ""
    """Label selector of the pods that are engines, such as app=vllm; empty: no Kubernetes."""
    kubernetes_namespace: str = ""
    """Their namespace; empty: that of the router's own pod."""
    kubernetes_api: str = ""
    """URL of the API server; empty: as pods are told."""
    kubernetes_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Folder with token, ca.crt and namespace of the service account, which must be allowed to list and watch pods."""
    mode: str = "push"
    """How the KV cache reaches decode: push, pull, local (no disaggregation), or auto (what suits prompt and pair)."""
    mode_header: str = ""
    """Header by which a client may name the mode, such as x-tandem-mode: pull, or !local for any but it."""
    local_below_bytes: int = 0
    """Requests with fewer body bytes run on decode alone; 0: never."""
    crossover_tokens: int = 0
    """With mode auto, prompts of fewer estimated tokens run on decode alone; 0: learned from times to first token."""
    explain_placements: int = 0
    """Keep why the last so many requests were placed as they were, for /admin/placements; 0: none."""
    explain_header: str = ""
    """Header by which a client may ask, with 1, for headers that say who served it, how and how long; empty: none."""
    model_aliases: tuple[str, ...] = ()
    """Other names for models, each as alias=model."""
    prefill_policy: str = "power_of_two"
    """power_of_two, least_loaded, least_tokens, round_robin, random, session, prefix or cost: who prefills."""
    decode_policy: str = "power_of_two"
    """The same names: who decodes."""
    decode_lead_s: float = 0.0
    """Seconds before prefill's expected end at which decode is chosen: it holds no blocks before; 0: at the start."""
    return_path: bool = False
    """On the next turn of a conversation prefill may fetch KV from the decode that served the turn before."""
    session_header: str = ""
    """Header that names a request's session, before session_id, prompt_cache_key and user of the body."""
    prefill_cancel: str = "anytime"
    """anytime, or never for engines that strand decode's blocks when prefill is cancelled."""
    vllm_lease_s: float = 30.0
    """Seconds for which plain vLLM prefill keeps KV that is to be pushed (its kv_lease_duration); 0: not watched."""
    attempts: int = 2
    """Tries per request, the first included."""
    retry_share: float = 0.2
    """Retries per request that are allowed on average; 0: only retry_floor_per_s."""
    retry_floor_per_s: float = 1.0
    """Retries per second that are allowed whatever the load."""
    hedge_share: float = 0.0
    """Share of all requests that may get a second prefill and decode while the first prefill is late; 0: none."""
    hedge_after_s: float = 0.0
    """Seconds after which a prefill is late; 0: what 95 of 100 of its size did not exceed of late."""
    breaker_failures: int = 3
    """Failures in a row (no connection, 502, 503, 504, timeouts) after which an instance is left out; 0: none is."""
    breaker_share: float = 0.5
    """Share of failures, among at least 20 ends within breaker_window_s, that leaves it out too; 0: none does."""
    breaker_window_s: float = 10.0
    """Seconds over which that share is taken."""
    breaker_open_s: float = 2.0
    """Seconds for which it is left out; doubled each time it fails again."""
    breaker_open_max_s: float = 30.0
    """Longest time for which it is left out before one request tries it."""
    probe_s: float = 5.0
    """Seconds between two questions to each instance whether it takes requests; 0: none are asked."""
    probe_timeout_s: float = 5.0
    """Seconds for an answer."""
    probe_failures: int = 3
    """Failures in a row after which an instance is left out; one that never answered well is at the first."""
    probe_successes: int = 2
    """Good answers in a row after which it is back."""
    max_requests: int = 4096
    """Requests in flight above which new ones get 503."""
    max_tokens: int = 0
    """Estimated prompt tokens in flight above which new requests get 503; 0: no limit."""
    shared_budgets: bool = False
    """The limits of requests and tokens in flight hold for all replicas on one store together, not for each."""
    model_max_requests: int = 0
    """Requests in flight of one model; 0: no limit."""
    model_max_tokens: int = 0
    """Estimated prompt tokens in flight of one model; 0: no limit."""
    caller_max_requests: int = 0
    """Requests in flight or waiting of one API key, above which it gets 429; 0: no limit."""
    caller_max_tokens: int = 0
    """Estimated prompt tokens in flight or waiting of one API key, above which it gets 429; 0: no limit."""
    queue_requests: int = 0
    """Requests that may wait for admission instead of getting 503; 0: none."""
    queue_tokens: int = 0
    """Estimated prompt tokens that may wait; 0: no limit."""
    priority_from: str = "none"
    """Where a waiting request's priority is read, smaller first: none, header (X-Priority) or body (priority)."""
    priority_ahead: int = 0
    """How far clients may step ahead: a priority below minus this counts as that; 0: they may only step back."""
    queue_s: float = 60.0
    """Seconds for which a request may wait for admission."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Largest request body; images travel inside it."""
    max_head_bytes: int = 64 * 1024
    """Largest request head."""
    arrival_s: float = 60.0
    """Seconds within which a request must have arrived."""
    connect_s: float = 2.0
    """Seconds for a connection to an engine."""
    prefill_s: float = 30.0
    """Seconds for a prefill, plus prefill_token_s for each estimated prompt token."""
    prefill_token_s: float = 0.001
    """Seconds that a prompt token adds to prefill_s."""
    registration_s: float = 0.0
    """Seconds for which decode's shim may wait for room for the KV cache; 0: as long as the shim says."""
    kv_wait_s: float = 0.0
    """Seconds for which it may then wait for the KV cache; 0: as long as the shim says."""
    first_token_s: float = 40.0
    """Seconds from prefill's answer to the first token of a stream."""
    next_token_s: float = 30.0
    """Seconds between two tokens."""
    answer_s: float = 60.0
    """Seconds from prefill's answer to an answer that is not streamed, plus answer_token_s for each of its tokens."""
    answer_token_s: float = 0.1
    """Seconds that a token of max_tokens (4096 where a request names none) adds to answer_s."""
    stalled_s: float = 60.0
    """Seconds after which a client that takes nothing is treated as gone."""
    total_s: float = 600.0
    """Seconds for a whole request."""
    engine_idle_s: float = 4.0
    """Seconds for which an idle connection to an engine is kept; below the engine's own keep-alive (plain vLLM: 5)."""
    keep_alive_s: float = 75.0
    """Seconds for which an idle client connection is kept."""
    pre_stop_s: float = 0.0
    """Seconds after SIGTERM in which new requests are still served, while /readyz says 503 already."""
    grace_s: float = 30.0
    """Seconds that running requests get after that."""
    fleet_poll_s: float = 0.25
    """Seconds between two looks at the fleet."""
    data_path: str = "hook"
    """hook: inference before ASGI; asgi: the same behind it, as a fallback."""
    access_log: bool = True
    """One JSON line per request on standard output."""
    api_keys: tuple[str, ...] = ()
    """Keys that inference wants, as name:digest with the key's SHA-256 in hex; none at all: open to everybody."""
    api_key_file: str = ""
    """File of more such keys, one a line; read again when it changes."""
    admin_key: str = field(default="", repr=False)
    """Key of /admin, by environment or file; without it /admin is there for this machine alone."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call from a browser, or *."""
    tls_cert: str = ""
    """Certificate file (PEM) by which clients are served over TLS; read again when it changes."""
    tls_key: str = ""
    """Its private key; empty: in the same file."""
    tls_client_ca: str = ""
    """Authority of the certificates that clients must show, read again when it changes; empty: none is asked for."""
    engine_key: str = field(default="", repr=False)
    """API key that engines want, by environment or file; a client's key is never passed on."""
    engine_key_file: str = ""
    """File of lines `URL KEY` for engines that want another key, or none; read again when it changes."""
    engine_ca: str = ""
    """Authority of the certificates of https:// engines, read again when it changes; empty: the system's."""
    engine_cert: str = ""
    """Certificate file (PEM) that this router shows to https:// engines; read again when it changes."""
    engine_cert_key: str = ""
    """Its private key; empty: in the same file."""
    engine_server_name: str = ""
    """Name that the certificates of https:// engines have; empty: the host of each URL."""
    engine_hosts: tuple[str, ...] = ()
    """Where engines may be: networks (10.0.0.0/8), names, .suffixes; empty: all but link-local, metadata addresses."""
    otlp: str = ""
    """Collector that takes OpenTelemetry traces over HTTP, http://host:4318; empty: none are made."""
    trace_share: float = 0.01
    """Share of the requests that are traced where the client has not decided it, 0 to 1."""
    workers: int = 1
    """Processes that serve on the port, each on a core of its own; 0: one per core."""


def help_texts() -> dict[str, str]:
    """Each setting's description, by name."""
    return field_texts(Settings)


def check(settings: Settings) -> Settings:
    """The settings, which are all in range.

    Raises:
        BadSettings: one is not.
    """
    from router.core.aliases import read_aliases  # noqa: PLC0415 - keeps `--help` free of the router's core

    _check_choices(settings)
    read_aliases(settings.model_aliases)
    read_engine_hosts(settings.engine_hosts)
    for one in fields(Settings):
        value = getattr(settings, one.name)
        if isinstance(value, (int, float)) and not 0 <= value < inf:  # neither is true of a NaN
            raise BadSettings(f"{one.name} must be a number from 0 on, got {value}.")
    for name in ("attempts", "max_requests", "total_s", "fleet_poll_s", "router_lease_s"):
        if getattr(settings, name) <= 0:
            raise BadSettings(f"{name} must be above 0.")
    check_key(settings.deployment_key, "localhost")  # the key is for what we send, whoever reaches us
    _check_shares(settings)
    _check_ports(settings)
    if settings.workers > min(MAX_WORKERS, settings.max_requests):
        raise BadSettings(f"workers must be at most {MAX_WORKERS} and at most max_requests, got {settings.workers}.")
    _check_needs(settings)
    return settings


def _check_choices(settings: Settings) -> None:
    from router.core.policy_table import POLICY_NAMES  # noqa: PLC0415 - as in `check`

    _among("mode", settings.mode, MODES)
    _among("data_path", settings.data_path, DATA_PATHS)
    _among("priority_from", settings.priority_from, PRIORITY_SOURCES)
    _among("prefill_cancel", settings.prefill_cancel, PREFILL_CANCELS)
    _among("prefill_policy", settings.prefill_policy, POLICY_NAMES)
    _among("decode_policy", settings.decode_policy, POLICY_NAMES)


def _check_needs(settings: Settings) -> None:
    """What makes no sense without something else."""
    if settings.shared_budgets and not settings.store:
        raise BadSettings("shared_budgets needs --store, where replicas divide them.")
    if settings.decode_lead_s and settings.mode not in ("push", "auto"):
        raise BadSettings(f"decode_lead_s needs mode push or auto: in mode {settings.mode} decode holds nothing early.")
    if (settings.tls_key or settings.tls_client_ca) and not settings.tls_cert:
        raise BadSettings("tls_key and tls_client_ca need tls_cert, the certificate that clients are shown.")
    if settings.engine_cert_key and not settings.engine_cert:
        raise BadSettings("engine_cert_key needs engine_cert, the certificate that engines are shown.")
    if not (settings.store or settings.decode or settings.fleet_file or settings.kubernetes_selector):
        raise BadSettings(
            "Give --store (a redis:// URL), or the engines by --prefill and --decode, by --fleet-file or by "
            "--kubernetes-selector."
        )


def _check_ports(settings: Settings) -> None:
    for name in ("port", "metrics_port"):
        if getattr(settings, name) > 65535:
            raise BadSettings(f"{name} must be at most 65535, got {getattr(settings, name)}.")
    if settings.metrics_port and settings.metrics_port == settings.port:
        raise BadSettings(f"metrics_port must be another one than port, which is {settings.port}.")


def _check_shares(settings: Settings) -> None:
    for name in ("trace_share", "breaker_share"):
        if getattr(settings, name) > 1:
            raise BadSettings(f"{name} must be from 0 to 1, got {getattr(settings, name)}.")
    if settings.otlp and not settings.otlp.startswith(("http://", "https://")):
        raise BadSettings(f"otlp must be an http:// or https:// address, got {settings.otlp!r}.")


def _among(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadSettings(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
