"""How requests are placed, built from the settings."""

from __future__ import annotations

from dataclasses import replace

from router.api.hints import Hints
from router.contract.instance import Mode
from router.core.aliases import read_aliases
from router.core.explain import Explanations
from router.core.keepers import Keepers
from router.core.late import LateChoice
from router.core.placement import Rules
from router.core.policy_table import AFFINE_NAMES, decode_policy, prefill_policy
from router.settings import Settings


def build_rules(settings: Settings) -> Rules:
    """The Rules of one router; policies that remember begin with nothing."""
    return Rules(
        mode=None if settings.mode == "auto" else Mode(settings.mode),
        local_below_bytes=settings.local_below_bytes,
        prefill_policy=prefill_policy(settings.prefill_policy),
        decode_policy=decode_policy(settings.decode_policy),
        crossover_tokens=settings.crossover_tokens,
        decode_first=settings.decode_policy in AFFINE_NAMES,
        learns="cost" in (settings.prefill_policy, settings.decode_policy) or settings.decode_lead_s > 0,
        keepers=Keepers() if settings.return_path else None,
        late=LateChoice(settings.decode_lead_s) if settings.decode_lead_s else None,
    )


def changed_rules(rules: Rules, settings: Settings, changed: frozenset[str]) -> Rules:
    """The Rules of changed settings; a policy whose own setting is none of `changed` goes on with what it remembers."""
    fresh = build_rules(settings)
    return replace(
        fresh,
        prefill_policy=fresh.prefill_policy if "prefill_policy" in changed else rules.prefill_policy,
        decode_policy=fresh.decode_policy if "decode_policy" in changed else rules.decode_policy,
        late=fresh.late if "decode_lead_s" in changed else rules.late,
        keepers=fresh.keepers if "return_path" in changed else rules.keepers,
    )


def build_hints(settings: Settings) -> Hints | None:
    """What clients may say of a request's place; None when nothing is listened to."""
    hints = Hints(
        settings.session_header.lower().encode(),
        settings.mode_header.lower().encode(),
        read_aliases(settings.model_aliases),
        settings.explain_header.lower().encode(),
    )
    return hints if hints.listens else None


def build_explanations(settings: Settings) -> Explanations | None:
    """Where choices are explained; None when nobody has asked for it."""
    return Explanations(settings.explain_placements) if settings.explain_placements else None
