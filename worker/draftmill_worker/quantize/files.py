"""The open source and output files of one run, addressed by the plan's tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftmill.plans import TensorPlan
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.quantize.reader import WeightReader
from draftmill_worker.quantize.writer import WeightWriter


@dataclass(frozen=True, slots=True)
class Files:
    readers: Mapping[str, WeightReader]
    writers: Mapping[str, WeightWriter]

    def info(self, tensor: TensorPlan) -> TensorInfo:
        return self.readers[tensor.file].tensors[tensor.name]

    def elements(self, tensor: TensorPlan, first: int, last: int) -> NDArray[Any]:
        return self.readers[tensor.file].elements(self.info(tensor), first, last)

    def read(self, tensor: TensorPlan, first: int, buffer: memoryview) -> memoryview:
        """Fills `buffer` with the stored bytes from `first` on, and gives it back."""
        self.readers[tensor.file].read(self.info(tensor).start + first, buffer)
        return buffer

    def put(self, tensor: TensorPlan, output: str, offset: int, data: NDArray[np.generic] | memoryview) -> None:
        """Writes into the output tensor named `output`, which lies in the file of its source."""
        self.writers[tensor.file].put(output, offset, data)
