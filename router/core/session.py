"""Session affinity: requests of one session go to one instance, by consistent hashing with bounded loads.

The ring names the owner of a session. An owner that already holds more than BOUND times the average share passes the
request on to the next on the ring, so one busy session cannot melt one instance; the walk ends, because somebody always
holds no more than the average. Below AT_LEAST sequences an instance is never too busy: at low load the prefix cache of
a session is worth more than evenness. (Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads.)
"""

from __future__ import annotations

from router.core.fleet import Member
from router.core.intake import Intake
from router.core.policies import Weigh, power_of_two
from router.core.ring import Rings, key_of
from router.core.roster import Roster
from router.core.weights import weigh_sequences

BOUND = 1.25
AT_LEAST = 8
UNNAMED = frozenset({b"", b"null", b'""'})
"""What names no session, as it stands in a body."""


class SessionAffinity:
    """A Policy. Requests without a session are spread by power of two."""

    def __init__(self) -> None:
        self._rings = Rings()

    def __call__(self, members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
        """The owner of the request's session, or who stands in for it."""
        session = bytes(intake.session)
        if session in UNNAMED:
            return power_of_two(members, weigh, intake, turn)
        ring, key = self._rings.of(members), key_of(session)
        owner = members[ring.owner(key)]
        weight = weigh_sequences(owner)
        if weight < AT_LEAST:
            return owner
        limit = limit_of(sum(map(weigh_sequences, members)), len(members))
        if weight < limit:
            return owner
        return next(member for number in ring.owners(key) if weigh_sequences(member := members[number]) < limit)


def limit_of(total: int, num: int) -> int:
    """Sequences below which one of `num` instances that together have `total` takes one more."""
    return max(AT_LEAST, -int(-(total + 1) * BOUND // num))
