"""schemathesis over the OpenAPI document, against the running service: every check it has, auth among them."""

import re
import subprocess
import sys
from pathlib import Path

from draftmill.plans import Preflight
from draftmill.problems import ProblemError
from draftmill_service.api.app import create_app
from tests.integration.live import answering_worker, live_service

# What no schema can say: a well-formed cursor of another query is refused; a spec has rules across its fields, and to
# a strict reader 1.0 is no integer.
REFUSING = (
    "GET /v1/jobs",
    "GET /v1/receipts",
    "GET /v1/batches",
    "GET /v1/batches/{batch_id}/items",
    "POST /v1/jobs",
    "POST /v1/preflight",
    "POST /v1/batches",
)
CONFIG = "\n".join(
    f'[[operations]]\ninclude-name = "{name}"\nchecks.positive_data_acceptance.enabled = false' for name in REFUSING
)


def test_no_call_of_the_document_breaks_the_service(clean_redis: str, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    answer = Preflight(ok=False, problem=ProblemError("no-weights", "nothing there").problem)
    with live_service(clean_redis, tmp_path, preflight_seconds=20) as live, answering_worker(clean_redis, answer):
        command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config), "run"]
        # Streams of jobs that nobody runs have no end: the timeout is theirs.
        limits = ["--max-examples=8", "--seed=1", "--request-timeout=1.5", "--no-color"]
        header = f"Authorization: Bearer {live.token}"
        run = subprocess.run(
            [*command, *limits, f"--header={header}", f"{live.url}/openapi.json"],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        operations = create_app(live.settings).openapi()["paths"]
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    tested = re.search(r"Tested: (\d+)", run.stdout)
    assert tested is not None
    assert int(tested[1]) == sum(len(item) for item in operations.values())
