from tests.integration.worker_stages.behave import small

run = small()
