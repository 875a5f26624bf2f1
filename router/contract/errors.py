"""The error tree. Each class says who is to blame and whether a retry elsewhere can help.

TandemError
+- ClientError                 the caller must change the request
|  +- BadRequest          400     +- ContextTooLong    400     +- Unauthorized   401
|  +- ModelUnknown        404     +- RouteUnknown      404     +- MethodNotAllowed 405
|  +- RequestTimeout      408     +- BodyTooLarge      413     +- HeadersTooLarge 431
|  +- QuotaExceeded       429     +- MediaUnsupported  415     +- InstanceUnknown 404
+- RouterError                 our own doing
|  +- Overloaded          503     +- Draining          503     +- Impossible     500
|  +- OutOfTime           504     +- QueueTimeout      503
+- StoreError
|  +- StoreDown           503
+- FleetError                  nobody is there to do it
|  +- NoPrefill           503     +- NoDecode          503     +- NoPair         503
+- LegError                    one upstream call went wrong; `side` says which
|  +- LegUnreachable      503     +- LegBroken         502     +- LegTimeout     504     +- EngineUnauthorized 502
+- TransferError               the KV cache did not arrive
|  +- HandshakeFailed     502     +- TransferFailed    502     +- PeerGone       502
|  +- KVWaitTimeout       504     +- LayoutMismatch    500     +- StaleAttempt   502
+- EngineError
|  +- NoSeats             503     +- EngineDown        503     +- DeadlinePassed 504
|  +- RankGone            503     +- RegistrationTimeout 504
+- DeploymentError             the operator must change the set-up (process exit status 2)
   +- BadSettings                 +- MissingDependency            +- AddressTaken
   +- ModelUnusable               +- WorkersDie
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Blame(StrEnum):
    """Who has to act."""

    CLIENT = "client"
    ROUTER = "router"
    STORE = "store"
    PREFILL = "prefill"
    DECODE = "decode"
    FABRIC = "fabric"
    DEPLOYMENT = "deployment"


class TandemError(Exception):
    """Root of the tree. `message` is one sentence that says what happened and what to do about it."""

    blame: ClassVar[Blame] = Blame.ROUTER
    retryable: ClassVar[bool] = False
    """True when the same request may succeed as a fresh Attempt on other instances."""
    http_status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    """`error.type` of OpenAI's envelope."""
    code: str = "internal_error"
    """`error.code` of OpenAI's envelope; stable, machine-readable. An instance may be more exact than its class."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """Keep the sentence, and of a client's error the parameter that it is about."""
        super().__init__(message)
        self.message = message
        self.param = param


class ClientError(TandemError):
    """The caller must change the request."""

    blame = Blame.CLIENT
    http_status = 400
    type = "invalid_request_error"
    code = "bad_request"


class BadRequest(ClientError):
    """The body or a parameter is not acceptable."""


class ContextTooLong(ClientError):
    """Prompt (plus wanted tokens) does not fit the model's context."""

    code = "context_length_exceeded"


class Unauthorized(ClientError):
    """No valid API key."""

    http_status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ModelUnknown(ClientError):
    """No live instance serves this model name."""

    http_status = 404
    code = "model_not_found"


class RouteUnknown(ClientError):
    """There is no such path."""

    http_status = 404
    code = "not_found"


class InstanceUnknown(ClientError):
    """No such instance is part of the fleet."""

    http_status = 404
    code = "instance_not_found"


class MethodNotAllowed(ClientError):
    """The path exists, the method does not."""

    http_status = 405
    code = "method_not_allowed"


class RequestTimeout(ClientError):
    """The body did not arrive in time."""

    http_status = 408
    code = "request_timeout"


class BodyTooLarge(ClientError):
    """The body is over the configured limit."""

    http_status = 413
    code = "body_too_large"


class HeadersTooLarge(ClientError):
    """The request head is over the configured limit."""

    http_status = 431
    code = "headers_too_large"


class MediaUnsupported(ClientError):
    """The body's encoding is not one that is understood."""

    http_status = 415
    code = "unsupported_media_type"


class QuotaExceeded(ClientError):
    """The caller's own quota is used up."""

    http_status = 429
    type = "rate_limit_error"
    code = "quota_exceeded"


class RouterError(TandemError):
    """The router's own doing."""

    http_status = 503
    code = "router_error"


class Overloaded(RouterError):
    """Our budgets are full; Retry-After tells when to come again."""

    code = "overloaded"


class QueueTimeout(RouterError):
    """The request has waited for admission for as long as it may."""

    code = "queue_timeout"


class Draining(RouterError):
    """This process is going away; another one may take the request."""

    retryable = True
    code = "draining"


class OutOfTime(RouterError):
    """The request's total deadline has passed in the router."""

    http_status = 504
    code = "deadline_exceeded"


class Impossible(RouterError):
    """A machine met an event for which its table has no row: a bug."""

    http_status = 500
    code = "internal_error"


class StoreError(TandemError):
    """The store's doing."""

    blame = Blame.STORE
    http_status = 503
    code = "store_error"


class StoreDown(StoreError):
    """Redis does not answer."""

    code = "store_down"


class FleetError(TandemError):
    """Nobody is there to do it."""

    blame = Blame.DEPLOYMENT
    http_status = 503
    code = "no_capacity"


class NoPrefill(FleetError):
    """No live prefill instance serves the model."""

    code = "no_prefill"


class NoDecode(FleetError):
    """No live decode instance serves the model."""

    code = "no_decode"


class NoPair(FleetError):
    """Prefill and decode instances are live, but no two of them can exchange KV cache."""

    code = "no_pair"


class LegError(TandemError):
    """One upstream call went wrong."""

    http_status = 502
    retryable = True
    code = "leg_failed"

    def __init__(self, message: str, *, side: Blame) -> None:
        """`side` is the role whose leg it was: Blame.PREFILL or Blame.DECODE."""
        super().__init__(message)
        self.side = side


class LegUnreachable(LegError):
    """The instance could not be connected: nothing was sent, and it may only be starting."""

    http_status = 503
    code = "leg_unreachable"

    def __init__(self, message: str, *, side: Blame) -> None:
        """The code names the role: `prefill_unreachable` or `decode_unreachable`."""
        super().__init__(message, side=side)
        self.code = f"{side}_unreachable"


class LegBroken(LegError):
    """The connection ended in the middle of an answer, or the answer was not HTTP."""

    code = "leg_broken"


class EngineUnauthorized(LegError):
    """The instance does not take the router's key; no client can do anything about it."""

    blame = Blame.DEPLOYMENT
    code = "engine_unauthorized"


class LegTimeout(LegError):
    """The instance did not answer within its phase's deadline."""

    http_status = 504
    code = "leg_timeout"

    def __init__(self, message: str, *, side: Blame, phase: str = "leg") -> None:
        """`phase` is the one whose deadline passed; the code is `<phase>_timeout`."""
        super().__init__(message, side=side)
        self.code = f"{phase}_timeout"


class TransferError(TandemError):
    """The KV cache did not arrive."""

    blame = Blame.FABRIC
    http_status = 502
    retryable = True
    code = "transfer_failed"


class HandshakeFailed(TransferError):
    """The peer's shim did not introduce itself, or is not who was expected."""

    code = "handshake_failed"


class TransferFailed(TransferError):
    """A copy could not be posted or ended badly."""


class PeerGone(TransferError):
    """The peer's process went away or started anew."""

    code = "peer_gone"


class KVWaitTimeout(TransferError):
    """The KV cache did not arrive within the deadline."""

    http_status = 504
    code = "kv_wait_timeout"


class LayoutMismatch(TransferError):
    """The two caches hold different models, dtypes or shapes."""

    blame = Blame.DEPLOYMENT
    http_status = 500
    retryable = False
    code = "layout_mismatch"


class StaleAttempt(TransferError):
    """This attempt has been given up or is here already; a fresh one may do."""

    code = "stale_attempt"


class EngineError(TandemError):
    """The engine's doing."""

    http_status = 503
    retryable = True
    code = "engine_error"


class RegistrationTimeout(EngineError):
    """Decode had no room for the KV cache within the deadline."""

    http_status = 504
    code = "registration_timeout"


class NoSeats(EngineError):
    """The sequence can never fit into this engine's KV cache."""

    code = "no_seats"


class EngineDown(EngineError):
    """The engine stopped working."""

    code = "engine_down"


class DeadlinePassed(EngineError):
    """The request's deadline passed while the engine was working on it."""

    http_status = 504
    retryable = False
    code = "deadline_passed"


class RankGone(EngineError):
    """An expert-parallel rank did not come in time; the instance fails what runs and starts its ranks again."""

    code = "rank_gone"


class DeploymentError(TandemError):
    """The operator must change the set-up; commands print the sentence and exit with status 2."""

    blame = Blame.DEPLOYMENT
    code = "deployment_error"


class BadSettings(DeploymentError):
    """A setting is unknown or out of range."""


class MissingDependency(DeploymentError):
    """A package or program that this command needs is not installed."""


class AddressTaken(DeploymentError):
    """Another process listens on the wanted address."""


class ModelUnusable(DeploymentError):
    """The model path is wrong, or the checkpoint is not one that the engine can load."""


class WorkersDie(DeploymentError):
    """Worker processes die again and again; another start would not help."""
