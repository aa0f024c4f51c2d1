from draftmill_worker.stages import choose
from tests.integration.worker_stages.behave import held

run = held(choose.run)
