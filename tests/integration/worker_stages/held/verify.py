from draftmill_worker.stages import verify
from tests.integration.worker_stages.behave import held

run = held(verify.run)
