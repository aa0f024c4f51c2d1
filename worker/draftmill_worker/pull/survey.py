"""What a source's small files say before its weights are fetched: modules to take along, shards that are missing."""

from collections.abc import Callable, Sequence

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import CONFIG, INDEX
from draftmill_worker.checkpoint.config import MAX_CONFIG_BYTES, MAX_INDEX_BYTES, load_object
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.pull.listing import ListedFile, Listing
from draftmill_worker.pull.modules import Tree, needed_modules


class ListingTree:
    """A repository's files, each fetched when it is read."""

    def __init__(self, listing: Listing, fetch: Callable[[ListedFile], bytes]) -> None:
        self._listing = listing
        self._fetch = fetch

    def has(self, path: str) -> bool:
        return self._listing.find(path) is not None

    def size(self, path: str) -> int:
        return self._file(path).size

    def read(self, path: str) -> bytes:
        return self._fetch(self._file(path))

    def _file(self, path: str) -> ListedFile:
        file = self._listing.find(path)
        if file is None:
            raise KeyError(path)
        return file


def survey(tree: Tree, names: Sequence[str], repo: str | None) -> tuple[str, ...]:
    """Paths of the Python modules to take beside the files `names`.

    Raises what `needed_modules` raises, and `incomplete-checkpoint` when the index names a file that is not there.
    """
    configs = [name for name in names if name == CONFIG or name.endswith("_config.json")]
    modules = needed_modules(tree, {name: _read(tree, name, MAX_CONFIG_BYTES) for name in configs}, repo)
    if INDEX in names:
        _check_index(_read(tree, INDEX, MAX_INDEX_BYTES), names)
    return modules


def _read(tree: Tree, name: str, bound: int) -> bytes:
    size = tree.size(name)
    if size > bound:
        message = f"{size} bytes of JSON; at most {bound} are read"
        raise ProblemError("malformed-config", f"{name}: {message}", [Offender(where=name, message=message)])
    return tree.read(name)


def _check_index(data: bytes, names: Sequence[str]) -> None:
    weight_map = load_object(data, INDEX, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict):
        return  # what is no map is refused where the headers are read
    files = {file for file in weight_map.values() if isinstance(file, str) and "/" not in file}
    findings = Findings()
    for file in sorted(files - set(names)):
        findings.add("incomplete-checkpoint", file, "the index names this file; it is not there")
    findings.raise_any()
