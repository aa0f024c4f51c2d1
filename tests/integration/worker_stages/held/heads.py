from draftmill_worker.stages import heads
from tests.integration.worker_stages.behave import held

run = held(heads.run)
