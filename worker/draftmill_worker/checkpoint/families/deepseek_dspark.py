"""DeepSeek-V4's DSpark, recognised so that it can be refused by name: docs/adr/0055 has what was read in vLLM 0.32."""

import re

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint

_STAGE = re.compile(r"mtp\.\d{1,6}\.(?:markov_head|main_proj|main_norm)\.")
_REASON = (
    "DeepSeek-V4's DSpark stages lie in the target's checkpoint and are served under the target's own quantization, "
    "FP8 in blocks of 128x128 with experts in MXFP4: the engine multiplies the FP8 blocks of wo_a itself, and reads no "
    "other format there"
)


def refuse_deepseek_dspark(checkpoint: Checkpoint) -> None:
    """Raises `family-not-quantizable`, whether its weights are quantized already or not."""
    stages = sorted({match[0] for name in checkpoint.tensors if (match := _STAGE.match(name))})
    if stages:
        offenders = [Offender(where=f"{stage}*", message=_REASON) for stage in stages]
        raise ProblemError("family-not-quantizable", _REASON, offenders)
