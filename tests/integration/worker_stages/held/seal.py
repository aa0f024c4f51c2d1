from draftmill_worker.stages import seal
from tests.integration.worker_stages.behave import held

run = held(seal.run)
