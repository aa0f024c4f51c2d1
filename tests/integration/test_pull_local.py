"""Local paths: the operator's roots, exports by number, Hub caches of links, hard links, changes meanwhile."""

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftmill.digests import digest
from draftmill.formats import Format
from draftmill.jobs import JobSpec, PathSource
from draftmill.problems import Problem, ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.identity import fingerprint
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.pull import LocalSettings, pull_path, read_local
from draftmill_worker.pull.folder import SourceFolder
from draftmill_worker.pull.survey import survey
from draftmill_worker.settings import StageSettings
from draftmill_worker.stages.preflight import preflight
from tests.unit.pull import builders

WEIGHTS = "model.safetensors"
SETTINGS = LocalSettings()
LINK = LocalSettings(link=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return tmp_path / "sources"


def refused(call: Callable[[], Any]) -> Problem:
    with pytest.raises(ProblemError) as caught:
        call()
    return caught.value.problem


def nothing_left(sources: Path) -> bool:
    return not any(path.is_file() for path in sources.rglob("*"))


def test_a_folder_is_copied_whole_and_read_only(root: Path, sources: Path) -> None:
    folder = builders.draft_model(root / "drafter", shards=2)
    for name in ("tokenizer.json", "README.md", "optimizer.pt"):
        (folder / name).write_text("{}")
    (folder / "global_step10").mkdir()
    before = fingerprint(folder)
    seen: list[tuple[int, int]] = []
    pulled = pull_path(folder, [root], sources, SETTINGS, lambda done, total: seen.append((done, total)))
    assert pulled.folder == sources / f"path-{digest(pulled.manifest)}"
    assert (pulled.repo, pulled.commit, pulled.cached, pulled.notes) == (None, None, False, ())
    assert make_manifest(pulled.folder) == pulled.manifest
    names = [entry.path for entry in pulled.manifest.files]
    assert names == sorted({"config.json", "tokenizer.json", builders.INDEX, *open_checkpoint(folder).files})
    for name in names:
        status = (pulled.folder / name).stat()
        assert stat.S_IMODE(status.st_mode) == 0o444
        assert status.st_nlink == 1
    assert fingerprint(folder) == before
    total = sum(entry.size for entry in pulled.manifest.files)
    assert seen[-1] == (total, total)


def test_the_same_bytes_are_not_copied_again(root: Path, sources: Path) -> None:
    folder = builders.draft_model(root / "drafter")
    first = pull_path(folder, [root], sources, SETTINGS)
    identity = fingerprint(first.folder)
    assert pull_path(folder, [root], sources, SETTINGS) == replace(first, cached=True)
    os.utime(folder / WEIGHTS)
    assert pull_path(folder, [root], sources, SETTINGS) == replace(first, cached=True)
    assert fingerprint(first.folder) == identity
    (folder / "tokenizer.json").write_text("{}")
    second = pull_path(folder, [root], sources, SETTINGS)
    assert second.cached is False
    assert second.folder != first.folder


def test_a_retrained_folder_of_equal_sizes_is_another_source(root: Path, sources: Path) -> None:
    """C52, for paths."""
    folder = builders.draft_model(root / "drafter")
    first = pull_path(folder, [root], sources, SETTINGS)
    status = (folder / WEIGHTS).stat()
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)
    os.utime(folder / WEIGHTS, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = pull_path(folder, [root], sources, SETTINGS)
    assert (second.cached, second.folder == first.folder) == (False, False)


def test_a_copy_that_was_changed_is_made_again(root: Path, sources: Path) -> None:
    folder = builders.draft_model(root / "drafter")
    first = pull_path(folder, [root], sources, SETTINGS)
    victim = first.folder / WEIGHTS
    victim.chmod(0o644)
    victim.write_bytes(b"x" * victim.stat().st_size)
    again = pull_path(folder, [root], sources, SETTINGS)
    assert again == first
    assert make_manifest(again.folder) == first.manifest


class TestRoots:
    @pytest.mark.parametrize(
        "path", ["/etc", "{root}/../outside", "{root}x", "{root}/link", "/proc/self/cwd", "{root}/.."]
    )
    def test_outside_is_refused(self, root: Path, sources: Path, path: str) -> None:
        outside = builders.draft_model(root.parent / "outside")
        builders.draft_model(root.parent / "rootx")
        (root / "link").symlink_to(outside)
        problem = refused(lambda: pull_path(path.format(root=root), [root], sources, SETTINGS))
        assert problem.slug == "path-not-allowed"
        assert nothing_left(sources)

    def test_what_is_missing_outside_looks_like_what_is_there(self, root: Path, sources: Path) -> None:
        builders.draft_model(root.parent / "there")
        there = refused(lambda: pull_path(root.parent / "there", [root], sources, SETTINGS))
        gone = refused(lambda: pull_path(root.parent / "gone", [root], sources, SETTINGS))
        assert there.slug == "path-not-allowed"
        assert there.detail.replace("there", "gone") == gone.detail

    def test_no_root_allows_nothing(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        assert refused(lambda: pull_path(folder, [], sources, SETTINGS)).slug == "path-not-allowed"

    def test_a_root_that_is_a_link_counts_as_its_target(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        (root.parent / "alias").symlink_to(root)
        assert pull_path(folder, [root.parent / "alias"], sources, SETTINGS).cached is False

    def test_missing_folders_and_files(self, root: Path, sources: Path) -> None:
        builders.draft_model(root / "drafter")
        assert refused(lambda: pull_path(root / "gone", [root], sources, SETTINGS)).slug == "path-not-found"
        file = root / "drafter" / "config.json"
        assert refused(lambda: pull_path(file, [root], sources, SETTINGS)).slug == "path-not-found"

    def test_a_file_that_links_out_is_refused_by_name(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        secret = root.parent / "secret"
        secret.write_text("do not read")
        for name in ("tokenizer.json", "chat_template.jinja"):
            (folder / name).symlink_to(secret)
        problem = refused(lambda: pull_path(folder, [root], sources, SETTINGS))
        assert problem.slug == "path-not-allowed"
        assert [offender.where for offender in problem.offenders] == ["chat_template.jinja", "tokenizer.json"]
        assert refused(lambda: read_local(folder, [root], SETTINGS)).slug == "path-not-allowed"
        assert nothing_left(sources)

    def test_a_preflight_refuses_what_the_pull_would(self, root: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        (folder / WEIGHTS).rename(root.parent / WEIGHTS)
        (folder / WEIGHTS).symlink_to(root.parent / WEIGHTS)
        spec = JobSpec(source=PathSource(path=str(folder)), format=Format.FP8)
        settings = StageSettings(allowed_roots=(root,))
        assert refused(lambda: preflight(spec, settings)).slug == "path-not-allowed"

    def test_a_module_that_links_out_is_refused(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter", auto_map={"AutoModel": "modeling_x.X"})
        (root.parent / "secret.py").write_text("")
        (folder / "modeling_x.py").symlink_to(root.parent / "secret.py")
        assert refused(lambda: pull_path(folder, [root], sources, SETTINGS)).slug == "path-not-allowed"

    def test_a_link_that_leads_nowhere_is_missing(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        (folder / "tokenizer.json").symlink_to(root / "gone")
        problem = refused(lambda: pull_path(folder, [root], sources, SETTINGS))
        assert (problem.slug, problem.offenders[0].where) == ("incomplete-checkpoint", "tokenizer.json")

    def test_a_pipe_does_not_hang_a_pull(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        os.mkfifo(folder / "tokenizer.json")
        assert refused(lambda: pull_path(folder, [root], sources, SETTINGS)).slug == "path-not-allowed"

    def test_a_hub_cache_of_links(self, root: Path, sources: Path) -> None:
        """snapshots/<commit>/file leads to ../../blobs/<hash>."""
        cache = root / "models--org--drafter"
        blobs = builders.draft_model(cache / "blobs")
        snapshot = cache / "snapshots" / ("a" * 40)
        snapshot.mkdir(parents=True)
        for path in blobs.iterdir():
            (snapshot / path.name).symlink_to(os.path.relpath(path, snapshot))
        pulled = pull_path(snapshot, [root], sources, SETTINGS)
        assert not any(path.is_symlink() for path in pulled.folder.iterdir())
        assert make_manifest(pulled.folder) == make_manifest(blobs)
        linked = pull_path(snapshot, [root], sources.with_name("linked"), LINK)
        assert (linked.folder / WEIGHTS).samefile(blobs / WEIGHTS)
        assert not (linked.folder / WEIGHTS).is_symlink()
        problem = refused(lambda: pull_path(snapshot, [snapshot], sources, SETTINGS))
        assert problem.slug == "path-not-allowed"
        assert len(problem.offenders) == 2


class TestExports:
    def test_the_newest_is_the_highest_number(self, root: Path, sources: Path) -> None:
        for step in (9, 999, 1000, 100):
            builders.draft_model(root / "run" / f"exported-checkpoint-{step}", rope_theta=step + 0.5)
        (root / "run" / "exported-checkpoint-best").mkdir()
        (root / "run" / "checkpoint-2000").mkdir()
        (root / "run" / "exported-checkpoint-5000").write_text("a file")
        pulled = pull_path(root / "run", [root], sources, SETTINGS)
        assert open_checkpoint(pulled.folder).config["rope_theta"] == 1000.5
        assert read_local(root / "run", [root], SETTINGS).config["rope_theta"] == 1000.5

    def test_a_half_written_newest_is_named_and_no_older_one_taken(self, root: Path, sources: Path) -> None:
        builders.draft_model(root / "run" / "exported-checkpoint-999")
        newest = builders.draft_model(root / "run" / "exported-checkpoint-1000", shards=2)
        shard = newest / "model-00002-of-00002.safetensors"
        whole = shard.read_bytes()
        shard.write_bytes(whole[:-10])
        problem = refused(lambda: pull_path(root / "run", [root], sources, SETTINGS))
        assert problem.slug == "malformed-safetensors"
        assert "exported-checkpoint-1000" in problem.detail
        shard.unlink()
        problem = refused(lambda: pull_path(root / "run", [root], sources, SETTINGS))
        assert problem.slug == "incomplete-checkpoint"
        assert "exported-checkpoint-1000" in problem.detail
        assert pull_path(root / "run" / "exported-checkpoint-999", [root], sources, SETTINGS).cached is False
        shard.write_bytes(whole)
        assert pull_path(root / "run", [root], sources, SETTINGS).cached is False

    def test_an_empty_newest_is_named(self, root: Path, sources: Path) -> None:
        builders.draft_model(root / "run" / "exported-checkpoint-1")
        (root / "run" / "exported-checkpoint-2").mkdir()
        problem = refused(lambda: pull_path(root / "run", [root], sources, SETTINGS))
        assert problem.slug == "no-weights"
        assert "exported-checkpoint-2" in problem.detail

    def test_two_exports_of_one_step_cannot_be_told_apart(self, root: Path, sources: Path) -> None:
        for step in ("10", "010"):
            builders.draft_model(root / "run" / f"exported-checkpoint-{step}")
        problem = refused(lambda: pull_path(root / "run", [root], sources, SETTINGS))
        assert [offender.where for offender in problem.offenders] == [
            "exported-checkpoint-010",
            "exported-checkpoint-10",
        ]

    def test_an_export_that_links_out_is_refused(self, root: Path, sources: Path) -> None:
        outside = builders.draft_model(root.parent / "outside")
        (root / "run").mkdir()
        (root / "run" / "exported-checkpoint-1").symlink_to(outside)
        assert refused(lambda: pull_path(root / "run", [root], sources, SETTINGS)).slug == "path-not-allowed"

    def test_a_folder_with_weights_is_a_checkpoint_itself(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "run", rope_theta=7.5)
        builders.draft_model(folder / "exported-checkpoint-1")
        assert open_checkpoint(pull_path(folder, [root], sources, SETTINGS).folder).config["rope_theta"] == 7.5


class TestLinks:
    def test_only_weights_are_linked_and_the_source_keeps_its_mode(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        (folder / WEIGHTS).chmod(0o640)
        pulled = pull_path(folder, [root], sources, LINK)
        assert (pulled.folder / WEIGHTS).samefile(folder / WEIGHTS)
        assert stat.S_IMODE((folder / WEIGHTS).stat().st_mode) == 0o640
        assert not (pulled.folder / "config.json").samefile(folder / "config.json")
        assert pulled.notes == ()
        assert make_manifest(pulled.folder) == pulled.manifest

    def test_a_linked_source_written_in_place_is_found(self, root: Path, sources: Path) -> None:
        folder = builders.draft_model(root / "drafter")
        first = pull_path(folder, [root], sources, LINK)
        with (folder / WEIGHTS).open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            stream.write(b"\x01")
        second = pull_path(folder, [root], sources, LINK)
        assert second.folder != first.folder
        assert make_manifest(second.folder) == second.manifest

    def test_another_volume_gets_a_copy_and_a_note(self, root: Path) -> None:
        """EXDEV from a real second volume."""
        volume = Path("/dev/shm")
        assert volume.stat().st_dev != root.stat().st_dev
        folder = builders.draft_model(root / "drafter")
        elsewhere = volume / f"draftmill-{os.getpid()}"
        try:
            pulled = pull_path(folder, [root], elsewhere / "sources", LINK)
            assert not (pulled.folder / WEIGHTS).samefile(folder / WEIGHTS)
            assert pulled.notes == (f"{WEIGHTS} was copied, not linked: another volume",)
            assert make_manifest(pulled.folder) == pulled.manifest
        finally:
            for path in sorted(elsewhere.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            elsewhere.rmdir()


class TestChanges:
    """A training job that goes on writing while its folder is pulled."""

    def pull_while(self, root: Path, sources: Path, change: Callable[[Path], None]) -> Problem:
        folder = builders.draft_model(root / "drafter", vocab=1 << 19)
        done: list[bool] = []

        def progress(count: int, total: int) -> None:
            if count > total // 2 and not done:
                done.append(True)
                change(folder)

        return refused(lambda: pull_path(folder, [root], sources, SETTINGS, progress))

    @pytest.mark.parametrize("change", ["rewritten", "grown", "replaced", "removed", "another shard", "config"])
    def test_is_noticed(self, root: Path, sources: Path, change: str) -> None:
        def rewrite(folder: Path) -> None:
            with (folder / WEIGHTS).open("r+b") as stream:
                stream.seek(5000)
                stream.write(b"changed")

        def grow(folder: Path) -> None:
            with (folder / WEIGHTS).open("ab") as stream:
                stream.write(b"more")

        def replace_file(folder: Path) -> None:
            (folder / "new").write_bytes((folder / WEIGHTS).read_bytes())
            (folder / "new").replace(folder / WEIGHTS)

        changes: dict[str, Callable[[Path], object]] = {
            "rewritten": rewrite,
            "grown": grow,
            "replaced": replace_file,
            "removed": lambda folder: (folder / WEIGHTS).unlink(),
            "another shard": lambda folder: (folder / "model-2.safetensors").write_bytes(b""),
            "config": lambda folder: (folder / "config.json").write_text("{}"),
        }
        problem = self.pull_while(root, sources, lambda folder: (changes[change](folder), None)[1])
        assert problem.slug == "source-changed"
        assert nothing_left(sources)

    def test_a_folder_that_is_removed_is_noticed(
        self, root: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def removed(source: SourceFolder, names: Sequence[str], repo: str | None) -> tuple[str, ...]:
            found = survey(source, names, repo)
            shutil.rmtree(source.path)
            return found

        monkeypatch.setattr("draftmill_worker.pull.local.survey", removed)
        for link in (SETTINGS, LINK):
            folder = builders.draft_model(root / "drafter")
            problem = refused(lambda: pull_path(folder, [root], sources, link))  # noqa: B023
            assert (problem.slug, problem.offenders[0].where) == ("source-changed", "config.json")
            builders.draft_model(root / "drafter")
            assert refused(lambda: read_local(folder, [root], SETTINGS)).slug == "source-changed"  # noqa: B023


def test_pulls_of_one_folder_at_the_same_time_give_one_source(root: Path, sources: Path) -> None:
    folder = builders.draft_model(root / "drafter", vocab=1 << 16)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: pull_path(folder, [root], sources, SETTINGS), range(4)))
    assert sum(not result.cached for result in results) == 1
    assert len({result.folder for result in results}) == 1
    assert make_manifest(results[0].folder) == results[0].manifest
    assert not list(sources.glob("*.partial"))


def test_what_a_killed_pull_left_is_cleared(root: Path, sources: Path) -> None:
    folder = builders.draft_model(root / "drafter")
    left = sources / f"incoming-{digest(str(folder))[:16]}.partial"
    left.mkdir(parents=True)
    (left / "junk.safetensors").write_bytes(b"junk")
    pulled = pull_path(folder, [root], sources, SETTINGS)
    assert make_manifest(pulled.folder) == pulled.manifest
    assert not left.exists()


def test_the_disk_budget_counts_copies_and_not_links(root: Path, sources: Path) -> None:
    folder = builders.draft_model(root / "drafter", vocab=4096)
    bound = (folder / "config.json").stat().st_size
    problem = refused(lambda: pull_path(folder, [root], sources, LocalSettings(disk_budget_bytes=bound)))
    assert problem.slug == "disk-budget"
    assert nothing_left(sources)
    assert pull_path(folder, [root], sources, LocalSettings(disk_budget_bytes=bound, link=True)).cached is False


def test_modules_of_auto_map_come_along(root: Path, sources: Path) -> None:
    """C72."""
    folder = builders.draft_model(root / "drafter", auto_map={"AutoModel": "pkg.model.M"})
    for name, text in {
        "pkg/model.py": "from .inner import x",
        "pkg/inner.py": "",
        "pkg/other.py": "",
        "a.py": "",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    names = [entry.path for entry in pull_path(folder, [root], sources, SETTINGS).manifest.files]
    assert names == ["config.json", WEIGHTS, "pkg/inner.py", "pkg/model.py"]
