"""Collection: two equal boots, in other folders and at other times, give receipts that do not differ."""

import dataclasses
import enum
import json
from pathlib import Path
from typing import Any

import pytest

from draftmill.archive import diff
from draftmill.benchmarks import ArmName
from draftmill.receipts import Receipt
from draftmill_worker.receipts.archive import Boot
from draftmill_worker.receipts.collect import Seen, checkpointed, collect
from draftmill_worker.receipts.describe import describe
from draftmill_worker.receipts.engine_log import warnings
from draftmill_worker.receipts.environment import environment
from draftmill_worker.receipts.host import host
from draftmill_worker.receipts.normalise import Roots, config, message
from draftmill_worker.receipts.redact import REDACTED, Redactor, looks_secret
from draftmill_worker.receipts.rules import validate
from draftmill_worker.receipts.versions import engine_build, versions
from tests.unit.receipts.conftest import Shelf
from tests.unit.receipts.good import COMMIT, Good, good, manifest

TOKEN = "hf_0123456789abcdefghij"
NOTHING = Redactor({})

LOG = """\
(APIServer pid={pid}) INFO 11-30 17:0{n}:00 [api.py:1] started
(EngineCore pid={pid}) WARNING 11-30 17:0{n}:0{n} [cpu.py:107] VLLM_CPU_KVCACHE_SPACE not set, using {folder}/cache
(EngineCore pid={pid}) WARNING 11-30 17:0{n}:01 [loader.py:8] loading took 1{n}.5 seconds, 2.{n} GiB at 0x7f83961bb{n}80
{folder}/venv/torch/x.py:12: UserWarning: deprecated {{}}
"""


def seen(sample: Good, root: Path, n: int, **changes: Any) -> Seen:
    """What a boot shows that ran below `root`; `n` makes its times, ports and ids its own."""
    receipt = sample.receipt
    folders = {"drafter": root / "variant", "target": root / "target", "cache": root / f"cache-{n}"}
    values: dict[str, Any] = {
        "arm": ArmName.VARIANT,
        "phases": receipt.phases,
        "argv": ("python", str(root / "request.json")),
        "environ": {
            "HOME": str(root),
            "HF_TOKEN": TOKEN,
            "VLLM_CACHE_ROOT": str(folders["cache"]),
            "VLLM_HOST_IP": f"10.0.0.{n}",
            "VLLM_PORT": f"4000{n}",
            "VLLM_API_KEY": f"key-{n}-of-somebody",
            "OMP_NUM_THREADS": "1",
        },
        "speculative_config": {
            "model": str(folders["drafter"]),
            "method": "eagle3",
            "num_speculative_tokens": 3,
        },
        # As vLLM 0.32 resolves it, with what was seen to differ between two processes.
        "engine_config": {
            "model_config": {
                "model": str(folders["target"]),
                "tokenizer": f"{folders['target']}/tokenizer.json",
                "served_model_name": str(folders["target"]),
                "hf_token": TOKEN,
                "hf_config": {"id": n},
            },
            "parallel_config": {
                "master_addr": f"10.0.0.{n}",
                "master_port": 29500 + n,
                "data_parallel_rpc_port": 29550 + n,
                "_data_parallel_master_port_list": [n],
                "tensor_parallel_size": 1,
            },
            "cache_config": {"num_gpu_blocks": 1000 + n, "kv_cache_size_tokens": n, "cache_dtype": "auto"},
            "speculative_config": {
                "draft_model_config": {
                    "hf_overrides": f"<function SpeculativeConfig.hf_config_override at 0x7f83961bb{n}80>"
                }
            },
            "compilation_config": {"cache_dir": f"{folders['cache']}/x", "compilation_time": 1.5 * n, "mode": 0},
            "instance_id": f"179605995025090905{n}",
        },
        "target": checkpointed(manifest("a"), repo="org/target", commit=COMMIT, path=folders["target"]),
        "drafter": receipt.drafter,
        "view": receipt.view,
        "counts": receipt.counts,
        "output_sha256": receipt.output_sha256,
        "prompts_sha256": receipt.prompts_sha256,
        "roots": folders | {"root": root},
        "timings": {"boot": 10.0 + n},
    }
    return Seen(**(values | changes))


def boot(shelf: Shelf, folder: Path, n: int) -> Boot:
    opened = shelf.open()
    opened.stdout.write_bytes(LOG.format(pid=1000 + n, n=n, folder=folder).encode())
    return opened


@pytest.fixture
def two(shelf: Shelf, tmp_path: Path) -> list[Receipt]:
    sample = good(tmp_path / "sample")
    roots = [tmp_path / "one", tmp_path / "another" / "place"]
    return [collect(boot(shelf, root, n), seen(sample, root, n)) for n, root in enumerate(roots, 1)]


def test_equal_runs_differ_in_nothing(two: list[Receipt]) -> None:
    assert diff(*two).changes == ()
    assert {"boot", "timings.boot"} <= {change.path for change in diff(*two, volatile=True).changes}


def test_paths_become_what_they_stand_for(two: list[Receipt], tmp_path: Path) -> None:
    receipt = two[0]
    assert receipt.speculative_config == {"model": "drafter", "method": "eagle3", "num_speculative_tokens": 3}
    assert receipt.engine_config["model_config"] == {
        "model": "target",
        "tokenizer": "target/tokenizer.json",
        "served_model_name": "target",
    }
    assert receipt.environment == {
        "OMP_NUM_THREADS": "1",
        "VLLM_API_KEY": REDACTED,
        "VLLM_CACHE_ROOT": "cache",
    }
    kept = receipt.model_copy(update={"argv": ()}).model_dump_json()
    assert str(tmp_path) not in kept
    assert TOKEN not in receipt.model_dump_json()


def test_warnings_are_distinct_and_without_times(two: list[Receipt]) -> None:
    assert two[0].warnings == (
        "UserWarning: deprecated {}",
        "[cpu.py:107] VLLM_CPU_KVCACHE_SPACE not set, using root/cache",
        "[loader.py:8] loading took <n> seconds, <n> GiB at <address>",
    )


def test_a_collected_receipt_keeps_the_rules_that_it_can(two: list[Receipt], tmp_path: Path) -> None:
    sample = good(tmp_path / "sample")
    expected = dataclasses.replace(
        sample.expected, target=dataclasses.replace(sample.expected.target, manifest=manifest("a"))
    )
    assert [result for result in validate(two[0], expected) if not result.passed] == []


def test_only_whole_path_components_are_replaced() -> None:
    roots = Roots({"a": Path("/data/x"), "b": Path("/data/x/y")})
    cases = {
        "/data/x": "a",
        "/data/x/y/z": "b/z",
        "/data/xy": "/data/xy",
        "/data/x-1": "/data/x-1",
        "/other/data/x": "/other/data/x",
        "file:/data/x.": "file:/data/x.",
        "['/data/x', '/data/x/y']": "['a', 'b']",
        "--path=/data/x/file": "--path=a/file",
    }
    assert {text: roots.text(text) for text in cases} == cases
    assert Roots({}).text("/data/x") == "/data/x"


def test_a_resolved_value_is_never_dropped_by_accident() -> None:
    kept = {"max_num_batched_tokens": 1, "tokenizer_mode": "auto", "block_size": 16, "cache_dtype": "auto"}
    assert config(kept, Roots({})) == kept
    assert config({"x": [{"master_port": 1, "y": 2}]}, Roots({})) == {"x": [{"y": 2}]}


@pytest.mark.parametrize(
    ("line", "tidied"),
    [
        ("took 3.25 s", "took <n> s"),
        ("listening on 127.0.0.1:8000", "listening on <network>"),
        ("pid=4711 died", "pid=<n> died"),
        ("at 2026-11-30T17:00:00.123Z", "at <time>"),
        ("needs 12.5 GiB of 24 GiB", "needs <n> GiB of <n> GiB"),
        ("layer 12 of 36, block 128", "layer 12 of 36, block 128"),
    ],
)
def test_lines_of_a_log_without_what_differs(line: str, tidied: str) -> None:
    assert message(line, Roots({})) == tidied


def test_a_log_of_any_bytes_and_length_is_bounded() -> None:
    lines = [f"WARNING 11-30 17:00:00 [x.py:{n}] {'y' * 9999}".encode() for n in range(500)]
    found = warnings(b"\xff\xfe\x00" + b"\n".join(lines), Roots({}), NOTHING)
    assert (len(found), max(map(len, found))) == (200, 500)
    assert warnings(b"INFO 11-30 17:00:00 [x.py:1] fine", Roots({}), NOTHING) == ()


@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        "dm_k1_0123456789abcdef-ghij",
        "sk-0123456789abcdefghij",
        "ghp_0123456789abcdefghij0123",
        "AKIA0123456789ABCDEF",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "Bearer 0123456789",
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_secrets_are_known_by_their_look(secret: str) -> None:
    assert looks_secret(f"x {secret} y")
    assert secret not in NOTHING.text(f"x {secret} y")
    assert not looks_secret(REDACTED)


def test_secrets_are_known_by_their_name_and_value() -> None:
    redactor = Redactor({"MY_PASSWORD": "correct horse", "OTHER": "battery"}, {"HF_TOKEN": "correct horse staple"})
    assert redactor.text("a correct horse staple b correct horse c battery") == f"a {REDACTED} b {REDACTED} c battery"
    assert redactor.text("redis://user:pass@host/0") == f"redis://{REDACTED}@host/0"
    assert redactor.variable("VLLM_API_KEY", "abc") == REDACTED
    assert redactor.variable("TOKENIZERS_PARALLELISM", "false") == "false"


def test_the_environment_is_an_allow_list() -> None:
    given = {"PATH": "x", "AWS_SECRET_ACCESS_KEY": "x", "VLLM_USE_V1": "1", "DRAFTMILL_API_KEY": "x", "NCCL_PORT": "1"}
    assert environment(given, Roots({}), NOTHING) == {"VLLM_USE_V1": "1"}


class Mode(enum.IntEnum):
    FAST = 3


@dataclasses.dataclass
class Inner:
    path: Path
    hook: Any
    mode: Mode = Mode.FAST


class Odd:
    def __init__(self) -> None:
        self.names = ["b", "a"]
        self.lock = object()


def test_any_configuration_becomes_json() -> None:
    value = {"inner": Inner(Path("/x"), describe), "odd": Odd(), "set": {"b", "a"}, "nan": float("nan"), "type": Odd}
    found = describe(value)
    assert json.loads(json.dumps(found)) == found
    assert found["inner"] == {"path": "/x", "hook": "draftmill_worker.receipts.describe.describe", "mode": "FAST"}
    assert found["odd"] == {"class": "Odd", "names": ["b", "a"]}
    assert found["set"] == ["a", "b"]
    assert found["type"] == f"{__name__}.Odd"
    loop: dict[str, Any] = {}
    loop["self"] = loop
    json.dumps(describe(loop))


def test_the_host_has_one_class_and_the_engine_one_build() -> None:
    assert host() == host()
    assert host().cpu_count >= 1
    assert engine_build() == engine_build()
    assert versions()["draftmill"]
