from draftmill_worker.stages import plan
from tests.integration.worker_stages.behave import held

run = held(plan.run)
