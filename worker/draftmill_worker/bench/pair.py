"""Whether a drafter can belong to a target, by their configurations."""

from draftmill.digests import digest
from draftmill.problems import Offender, ProblemError
from draftmill_worker.bench.subject import Subject

PADDING = 512
"""Rows by which two sizes of one model family differ when their vocabularies are padded differently."""


def check_pair(subject: Subject) -> None:
    """ProblemError("pair-mismatch") with all that does not fit."""
    drafter, layers, vocabulary = subject.drafter, subject.target_layers, subject.target_vocab
    offenders = []
    if drafter.vocab_size != vocabulary:
        padded = abs(drafter.vocab_size - vocabulary) <= PADDING
        why = "the same tokens padded otherwise: pad the smaller one" if padded else "another vocabulary"
        message = f"the target has {vocabulary}; {why}"
        offenders.append(Offender(where="source/vocab_size", message=message, value=drafter.vocab_size))
    if drafter.target_num_layers is not None and drafter.target_num_layers != layers:
        message = f"the drafter was made for another target; this one has {layers}"
        offenders.append(Offender(where="source/target layers", message=message, value=drafter.target_num_layers))
    elif drafter.target_layer_ids and drafter.min_target_layers > layers:
        message = f"the target has {layers} layers"
        ids = list(drafter.target_layer_ids)
        offenders.append(Offender(where="source/target_layer_ids", message=message, value=ids))
    if subject.embedded and digest(subject.target.manifest) != digest(subject.source.manifest):
        message = "an MTP block drafts for the checkpoint it lies in: name the same one as source and as target"
        offenders.append(Offender(where="benchmark.target", message=message, value=subject.target.repo))
    if offenders:
        raise ProblemError("pair-mismatch", "; ".join(f"{one.where}: {one.message}" for one in offenders), offenders)
