"""`specd import` on this machine: a real supervisor with a real (rehearsal) server in a unit."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.config import parse_config
from tests.contract.daemon_double import specd
from tests.contract.rehearsal import free_port
from tests.supervised import SLEEPER, Rig

KEY = "sk-123456789"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def serve(port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "specd.rehearsal", "serve", "acme/moe", "--port", str(port), *more]


async def test_a_running_unit_becomes_a_config_that_loads(rig: Rig) -> None:
    port = free_port()
    rig.write("llm", serve(port, "--api-key", KEY, "--served-model-name", "moe"), enabled=True)
    rig.boot()
    ended = await specd("import", "local", "llm", "--embedded", str(rig.directory))
    assert ended.status == 0, ended.err
    config = parse_config(ended.out, "imported")
    service = config.services["llm"]
    assert (service.host, service.unit, service.engine) == ("local", "llm.service", "rehearsal")
    assert config.hosts["local"].directory == str(rig.directory)
    assert f"http://127.0.0.1:{port}" in ended.out
    assert '# model = "moe"' in ended.out
    assert "api_key_file" in ended.out
    assert KEY not in ended.out
    named = await specd("import", "local", "llm", "--embedded", str(rig.directory), "--name", "kimi", "--json")
    assert "kimi" in parse_config(json.loads(named.out)["toml"], "imported").services


async def test_a_host_of_the_config_is_not_printed_again(rig: Rig, tmp_path: Path) -> None:
    rig.write("llm", serve(free_port()), enabled=True)
    rig.boot()
    config = tmp_path / "config.toml"
    config.write_text(f'[hosts.here]\nmanager = "embedded"\ndirectory = "{rig.directory}"\n')
    ended = await specd("import", "here", "llm", "--config", str(config))
    assert ended.status == 0, ended.err
    assert "[hosts." not in ended.out
    assert parse_config(config.read_text() + ended.out, "both").services["llm"].host == "here"


async def test_without_a_unit_the_candidates_are_listed(rig: Rig) -> None:
    port = free_port()
    rig.write("llm", serve(port))
    rig.write("other", SLEEPER)
    rig.boot()
    ended = await specd("import", "local", "--embedded", str(rig.directory))
    assert ended.status == 0, ended.err
    assert ended.out == f"llm.service  rehearsal  port {port}, model acme/moe\n"
    rig.end()
    (rig.units / "llm.service.json").unlink()
    rig.boot()
    ended = await specd("import", "local", "--embedded", str(rig.directory))
    assert ended.status == 2
    assert "no running unit" in ended.err


async def test_what_is_no_server_or_no_unit_is_refused_by_name(rig: Rig) -> None:
    rig.write("other", SLEEPER)
    rig.boot()
    for unit, words in (("other", "other.service runs no server that specd knows"), ("none", "none.service")):
        ended = await specd("import", "local", unit, "--embedded", str(rig.directory))
        assert ended.status == 4
        assert words in ended.err
        assert ended.out == ""


async def test_a_supervisor_that_does_not_run_is_not_started(rig: Rig) -> None:
    rig.write("llm", serve(free_port()), enabled=True)
    ended = await specd("import", "local", "llm", "--embedded", str(rig.directory))
    assert ended.status == 2
    assert ended.err
    assert not (rig.directory / "supervisor.pid").exists()


@pytest.mark.parametrize("host", ["-oProxyCommand=true", "", "a b"])
async def test_what_is_no_host_is_wrong_usage(host: str) -> None:
    ended = await specd("import", "--", host, "x")
    assert ended.status == 2
    assert "is not a host" in ended.err


async def test_a_host_that_does_not_answer_is_named() -> None:
    ended = await specd("import", f"127.0.0.1:{free_port()}", "x")
    assert ended.status == 2
    assert "127.0.0.1" in ended.err
