"""Chain heads in a file, for boots apart from a service. Whoever can change the archive can change it too."""

from pathlib import Path

from draftmill.receipts import ChainHead, ChainHeads
from draftmill_worker.files import write_atomic


class FileHeads:
    def __init__(self, path: Path) -> None:
        self._path = path

    def chain_heads(self) -> ChainHeads:
        try:
            return ChainHeads.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return ChainHeads(items=())

    def commit_chain_head(self, writer: str, sequence: int, sha256: str) -> bool:
        heads = {head.writer: head for head in self.chain_heads().items}
        known, head = heads.get(writer), ChainHead(writer=writer, sequence=sequence, sha256=sha256)
        if known is not None and known != head and known.sequence >= sequence:
            return False
        heads[writer] = head
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._path, ChainHeads(items=tuple(heads.values())).model_dump_json().encode())
        return True
