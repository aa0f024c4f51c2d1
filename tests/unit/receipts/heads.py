"""Chain heads kept in memory, by the ledger's rule."""

from draftmill.receipts import ChainHead, ChainHeads
from draftmill_service.ledger import LedgerUnavailable


class MemoryHeads:
    def __init__(self) -> None:
        self.kept: dict[str, ChainHead] = {}
        self.away = False

    def chain_heads(self) -> ChainHeads:
        self._answer()
        return ChainHeads(items=tuple(self.kept.values()))

    def commit_chain_head(self, writer: str, sequence: int, sha256: str) -> bool:
        self._answer()
        known = self.kept.get(writer)
        head = ChainHead(writer=writer, sequence=sequence, sha256=sha256)
        if known and (known.sequence > sequence or (known.sequence == sequence and known != head)):
            return False
        self.kept[writer] = head
        return True

    def _answer(self) -> None:
        if self.away:
            raise LedgerUnavailable("away")
