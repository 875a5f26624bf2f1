"""Mail: sealed notices and Tags, out through the writer thread and in from it."""

from __future__ import annotations

from collections import Counter

from engine_shim.fabric.port import PeerName
from engine_shim.fabric.writer import SendNotice, Writer
from router.contract.ids import EngineId
from router.contract.notices import Notice, Refused, read_notice, write_notice
from router.contract.seal import Seal
from router.contract.tags import Tag, decode_tag, is_tag


class Mail:
    """What this engine says to its peers, and what it believes of what they say."""

    def __init__(self, ours: EngineId, seal: Seal, writer: Writer) -> None:
        self._ours = ours
        self._seal = seal
        self._writer = writer
        self.refused: Counter[Refused] = Counter()
        """Notices and Tags that did not count, by the reason."""

    def tell(self, engine_id: EngineId, notice: Notice) -> None:
        """The notice is on its way; an unreachable peer becomes a PeerLost event."""
        self._writer.tell(SendNotice(PeerName(engine_id), write_notice(notice, self._seal)))

    def label(self, tag: Tag) -> bytes:
        """The Tag as a WRITE carries it."""
        return tag.encode(self._seal)

    def read(self, sender: PeerName, raw: bytes) -> Tag | Notice | None:
        """What has come in; None for what does not count, which is counted here. Never raises."""
        if is_tag(raw):
            tag = decode_tag(raw, self._seal)
            if tag is None:
                self.refused[Refused.FORGED] += 1
            return tag
        notice = read_notice(raw, self._seal, sender=EngineId(sender), receiver=self._ours)
        if isinstance(notice, Refused):
            self.refused[notice] += 1
            return None
        return notice
