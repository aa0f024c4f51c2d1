from draftmill_worker.stages import assemble
from tests.integration.worker_stages.behave import held

run = held(assemble.run)
