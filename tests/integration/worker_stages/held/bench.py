from draftmill_worker.stages import bench
from tests.integration.worker_stages.behave import held

run = held(bench.run)
