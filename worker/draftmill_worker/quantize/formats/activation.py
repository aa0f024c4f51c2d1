"""The static activation scale, resolved in one place."""

import numpy as np

from draftmill.formats import Format

E4M3_MAX = np.float32(448.0)
E2M1_MAX = np.float32(6.0)

# Without calibration data the range is E4M3's own: fp8's scale becomes exactly 1, and a drafter's hidden states,
# which have outliers, are not clipped (a range guessed from weights cost up to half of the acceptance length).
STATIC_AMAX = 448.0


def input_scale(format: Format, measured_amax: float | None = None) -> np.float32 | None:
    """The scale stored as `input_scale`, fp32; None where the format quantizes activations per token or not at all.

    fp8: amax / 448. nvfp4: amax / (6 * 448), the second-level scale. A measured amax comes before the static one.
    """
    amax = np.float32(STATIC_AMAX if measured_amax is None else measured_amax)
    if not (np.isfinite(amax) and amax > 0):
        raise ValueError(f"activation amax must be positive and finite, not {amax}")
    if format is Format.FP8:
        return np.float32(amax / E4M3_MAX)
    if format is Format.NVFP4:
        return np.float32(amax / (E2M1_MAX * E4M3_MAX))
    return None
