from draftmill_worker.stages import capture
from tests.integration.worker_stages.behave import held

run = held(capture.run)
