"""compose.yaml and the Dockerfiles name settings that there are, and times that fit each other."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftmill_service.settings import ServiceSettings
from draftmill_worker.launcher import LEAVE_SECONDS
from draftmill_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
WORKERS = ["quantize", "bench", "bench-cpu"]


def _settings(settings: type[ServiceSettings] | type[WorkerSettings]) -> set[str]:
    names = {f"DRAFTMILL_{name.upper()}" for name in settings.model_fields}
    return names | {"DRAFTMILL_REDIS_URL_FILE", "HF_TOKEN_FILE"}


@pytest.mark.parametrize("name", ["service", *WORKERS])
def test_variables_are_settings(name: str) -> None:
    known = _settings(ServiceSettings if name == "service" else WorkerSettings)
    assert set(SERVICES[name]["environment"]) <= known
    image = (ROOT / "docker" / f"{'service' if name == 'service' else 'worker'}.Dockerfile").read_text()
    assert set(re.findall(r"\b(DRAFTMILL_\w+)=", image)) <= known


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_has_the_time_to_hand_back(name: str) -> None:
    service = SERVICES[name]
    default = re.search(r":-(\d+)", service["environment"]["DRAFTMILL_DRAIN_SECONDS"])
    assert default is not None
    assert float(service["stop_grace_period"].removesuffix("s")) > float(default[1]) + 2 * LEAVE_SECONDS
    assert service["init"] is True


@pytest.mark.parametrize("name", list(SERVICES))
def test_every_container_is_held_down(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_redis_keeps_what_it_is_given() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    assert SERVICES["redis"]["networks"] == ["internal"]


@pytest.mark.parametrize(("profile", "bench"), [("cpu", "bench-cpu"), ("gpu", "bench")])
def test_profiles(profile: str, bench: str) -> None:
    started = {name for name, service in SERVICES.items() if profile in service.get("profiles", [profile])}
    assert started == {"redis", "service", "quantize", bench}


def test_the_bench_worker_reserves_a_gpu() -> None:
    (device,) = SERVICES["bench"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_prometheus_scrapes_what_there_is() -> None:
    scraped = yaml.safe_load((ROOT / "docker" / "prometheus.yml").read_text())["scrape_configs"]
    (service,), workers = scraped[0]["static_configs"], scraped[1]["dns_sd_configs"][0]
    assert service["targets"] == ["service:8642"]
    assert sorted(workers["names"]) == sorted(WORKERS)
    assert f"DRAFTMILL_METRICS_PORT={workers['port']}" in (ROOT / "docker" / "worker.Dockerfile").read_text()
