from draftmill_worker.stages import pull
from tests.integration.worker_stages.behave import held

run = held(pull.run)
