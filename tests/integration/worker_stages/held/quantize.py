from draftmill_worker.stages import quantize
from tests.integration.worker_stages.behave import held

run = held(quantize.run)
