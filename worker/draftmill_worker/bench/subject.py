"""What is measured: target, drafter and variant as folders, and what their files say."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from draftmill.benchmarks import ArmName
from draftmill.plans import Plan
from draftmill.reports import Manifest
from draftmill_worker.bench.engine_args import text_config
from draftmill_worker.checkpoint.checkpoint import CONFIG, Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.config import load_json
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.receipts.expected import Given, draft_map_sha256


@dataclass(frozen=True)
class Directory:
    """A model directory and what it is said to hold."""

    folder: Path
    manifest: Manifest
    repo: str | None
    commit: str | None
    variant: str | None = None

    @property
    def given(self) -> Given:
        return Given(self.manifest, self.commit, from_repo=self.repo is not None, variant=self.variant)

    @property
    def weight_bytes(self) -> int:
        return sum(file.size for file in self.manifest.files)


@dataclass(frozen=True)
class Subject:
    target: Directory
    source: Directory
    """The drafter before it was quantized: the control."""
    variant: Directory
    plan: Plan

    @property
    def embedded(self) -> bool:
        """Whether the drafter lies in its target's checkpoint, so that each arm serves the target with it."""
        return self.drafter.target is not None

    def target_of(self, arm: ArmName) -> Directory:
        """What the engine serves: for an embedded drafter, the directory that holds the arm's drafter."""
        if not self.embedded:
            return self.target
        return self.variant if arm is ArmName.VARIANT else self.source

    @cached_property
    def target_config(self) -> dict[str, Any]:
        config: dict[str, Any] = load_json((self.target.folder / CONFIG).read_bytes(), CONFIG)
        return config

    @property
    def target_layers(self) -> int:
        return int(text_config(self.target_config)["num_hidden_layers"])

    @property
    def target_vocab(self) -> int:
        return int(text_config(self.target_config)["vocab_size"])

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return open_checkpoint(self.source.folder)

    @cached_property
    def drafter(self) -> Drafter:
        """The source's reading; the variant is the same drafter."""
        return detect(self.checkpoint)

    @cached_property
    def draft_map(self) -> str | None:
        """Of the source: a variant's must be the same."""
        return draft_map_sha256(self.source.folder, self.checkpoint)
