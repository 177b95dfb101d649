"""Config files: the shipped example, every problem at once with its place, and what holds between tables."""

import dataclasses
import re
import textwrap
from pathlib import Path

import pytest

from specd.config import load_config, parse_config
from specd.errors import ConfigError
from specd.settings import BenchSettings, Config, DaemonSettings, GuardSettings, HostSettings, Policy

REPO = Path(__file__).parents[2]


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(textwrap.dedent(text), "c.toml")
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


GOOD = """
[hosts.gpu1]
ssh = "gpu1"
[services.kimi]
host = "gpu1"
unit = "vllm.service"
"""


def test_the_shipped_example_loads() -> None:
    config = load_config(REPO / "config.toml")
    assert config.services["kimi"].unit == "vllm-kimi.service"
    assert config.services["kimi"].deadlines.loading_s == 5400
    assert config.benchmarks["thorough"].levels == (1, 8, 32)
    assert config.benchmarks["traffic"].rates == (0.5, 1.0, 2.0)
    assert config.benchmarks["traffic"].prompts == {"chat": 3.0, "code": 1.0}


def test_the_example_s_comments_are_the_defaults_and_leave_no_key_out() -> None:
    text = (REPO / "config.toml").read_text()
    switched_on = re.sub(r"(?m)^# (?=[a-z_]+ = )", "", text)
    switched_on = switched_on.replace('tcp = ""', 'tcp = "" ')
    full = parse_config(switched_on, "config.toml")
    shipped = load_config(REPO / "config.toml")
    for kind, record in (
        (DaemonSettings, full.daemon),
        (GuardSettings, full.services["kimi"].guard),
        (Policy, full.services["kimi"].policy),
    ):
        assert record == kind()
    assert full.services == shipped.services
    assert full.hosts == shipped.hosts
    plan = full.benchmarks["default"]
    assert plan == BenchSettings(name="default")
    for section in (DaemonSettings, HostSettings, GuardSettings, Policy, BenchSettings):
        for item in dataclasses.fields(section):
            assert item.name in {"name"} or re.search(rf"(?m)^(# )?{item.name} = ", text), item.name


def test_the_least_config_gets_defaults_and_a_default_plan() -> None:
    config = parse_config(GOOD, "c.toml")
    assert config.services["kimi"].benchmark == "default"
    assert config.benchmarks["default"] == BenchSettings(name="default")
    assert parse_config("", "c.toml") == Config(path="c.toml", benchmarks={"default": BenchSettings(name="default")})


def test_all_problems_come_at_once_with_file_line_key_and_nearest_key() -> None:
    found = problems_of(
        """\
        [daemon]
        tcp = "1.2.3.4:1"
        log_levl = "info"
        [hosts.gpu1]
        ssh = 3
        becom = "sudo"
        [services.kimi]
        host = "gpu2"
        margin = 0.1
        benchmark = "deflt"
        [services.kimi.deadlines]
        loading_s = "90"
        ready_s = -1
        [services.kimi.guard]
        lease_s = 10
        [services."Bad Name"]
        host = "gpu1"
        unit = "-x.service"
        [benchmarks.a]
        levels = [1,
          0, 1.5]
        """
    )
    assert found == [
        "c.toml:3: daemon.log_levl: unknown key; did you mean log_level?",
        "c.toml:5: hosts.gpu1.ssh: must be a string, not a number",
        "c.toml:6: hosts.gpu1.becom: unknown key; did you mean become?",
        "c.toml:7: services.kimi.unit: is missing",
        "c.toml:8: services.kimi.host: no host is called gpu2; did you mean gpu1?",
        "c.toml:9: services.kimi.margin: unknown key here; it belongs in the table policy below this one",
        "c.toml:10: services.kimi.benchmark: no benchmark plan is called deflt; did you mean default?",
        "c.toml:12: services.kimi.deadlines.loading_s: must be a number, not a string; "
        "write seconds without quotes, for example 90",
        "c.toml:13: services.kimi.deadlines.ready_s: must be more than 0 and at most 2678400, not -1",
        "c.toml:15: services.kimi.guard.lease_s: renew_s (60) is more than half of lease_s (10): "
        "one lost renewal would fire",
        "c.toml:16: services.\"Bad Name\": 'Bad Name' is not a name: 1 to 63 lower-case letters, digits, dots, dashes "
        "and underscores, a letter or digit first",
        'c.toml:18: services."Bad Name".unit: must not begin with a dash',
        "c.toml:21: benchmarks.a.levels[1]: must be at least 1 and at most 4096, not 0",
        "c.toml:21: benchmarks.a.levels[2]: must be a whole number, not a fraction",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('unit = "a/b.service"', "not a path"),
        ('unit = ""', "must not be empty"),
        ('unit = "x.socket"', "is a socket unit"),
        ('unit = "x@.service"', "is a template"),
        ('unit = ".service"', "has nothing before"),
        ('unit = "a b"', "no unit's name"),
        ('unit = "x"\nendpoint = "127.0.0.1:8000"', "must be a URL"),
        ('unit = "x"\nendpoint = "http://h:99999"', "is not a URL"),
        ('unit = "x"\nendpoint = "http://h:1/v1"', "must end after the port"),
        ('unit = "x"\nendpoint = "http://u:pw@h:1"', "must not hold a login"),
        ('unit = "x"\nscope = "global"', "must be one of system, user; not 'global'"),
        ('unit = "x"\ndrain_s = nan', "must be a finite number"),
        ('unit = "x"\ndrain_s = inf', "must be a finite number"),
        ('unit = "x"\ndrain_s = true', "must be a number, not a truth value"),
        ('unit = "x"\nmodel = "a\\nb"', "control characters"),
        ('unit = "x"\nname = "y"', "the name is the table's own, here kimi"),
        ('unit = "x"\ndeadlines = 3', "must be a table, not a number"),
        ('unit = "x"\npolicy = { metric = "speed" }', "must be one of tpot, ttft, output_tok_s"),
        ('unit = "x"\npolicy = { level = 7 }', "is not a level of benchmark plan default, which has 1, 4"),
        ('unit = "x"\npolicy = { margin = 1 }', "less than 1, not 1"),
        ('unit = "x"\napi_key_file = "a"\napi_key_env = "A"', "exclude each other"),
        ('unit = "x"\nwhen = 1979-05-27', "unknown key"),
    ],
)
def test_impossible_values_of_a_service(line: str, words: str) -> None:
    found = problems_of(f'[hosts.gpu1]\n[services.kimi]\nhost = "gpu1"\n{line}\n')
    assert len(found) == 1
    assert words in found[0]
    assert re.match(r"c\.toml:\d+: services\.kimi\.", found[0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[hosts.a]\nssh = "-oProxyCommand=x"', "must not begin with a dash"),
        ('[hosts.a]\nssh = "a -p 22"', "one word"),
        ('[hosts.a]\nmanager = "embedded"', "directory: is missing"),
        ('[hosts.a]\ndirectory = "/x"', "did you mean unit_dir?"),
        ('[hosts.a]\nunit_dir = "x"', "absolute path"),
        ('[daemon]\ntcp = "127.0.0.1:1"', "needs token_file"),
        ('[daemon]\ntcp = "localhost"', "must be host:port"),
        ("hosts = 3", "must hold named tables, [hosts.NAME]"),
        ("[hosts]\na = 3", "must be a table, not a number"),
        ("[[hosts]]\nx = 1", "must hold named tables"),
        ("[benchmarks.a]\nlevels = []", "must not be empty"),
        ("[benchmarks.a]\nrates = [0]", "must be at least 0.001 and at most 10000, not 0"),
        ("[benchmarks.a]\nprompts = {}", "must name a prompt set"),
        ('[benchmarks.a]\nprompts = ""', "must name a prompt set"),
        ("[benchmarks.a]\nprompts = { chat = 0 }", "the weight of chat must be a number above 0"),
        ('[benchmarks.a]\nprompts = { chat = "much" }', "the weight of chat must be a number above 0"),
        ("[benchmarks.a]\nprompts = 3", "must be"),
        ("[benchmarks.a]\nlevels = [1, 1]", "same value twice"),
        ("[benchmarks.a]\nextra_body = { stream = false }", "must not hold stream"),
        ("[benchmarks.a]\nextra_body = { x = inf }", "finite number"),
        ("[benchmarks.a]\nextra_body = { x = 07:00:00 }", "put it in quotes"),
        ("[service.a]", "did you mean services?"),
    ],
)
def test_impossible_values_elsewhere(text: str, words: str) -> None:
    found = problems_of(text)
    assert len(found) == 1
    assert words in found[0]


def test_two_services_can_not_be_one_unit() -> None:
    found = problems_of(GOOD + '[services.two]\nhost = "gpu1"\nunit = "vllm"\n')
    assert found == ["c.toml:9: services.two.unit: vllm.service on gpu1 is already service kimi"]


def test_a_unit_of_a_user_and_sudo_do_not_go_together() -> None:
    text = GOOD.replace('ssh = "gpu1"', 'become = "sudo"') + 'scope = "user"\n'
    assert problems_of(text) == ['c.toml:7: services.kimi.scope: "user" does not go with become = "sudo" of host gpu1']


def test_a_wrong_value_is_not_blamed_twice() -> None:
    assert len(problems_of('[hosts.a]\nmanager = "embeded"\ndirectory = "/x"')) == 1
    assert len(problems_of("[hosts.a]\nmanager = 1")) == 1


def test_text_that_is_not_toml_is_named_with_line_and_column() -> None:
    assert problems_of("a = 1\nb = = 2\n") == ["c.toml:2:5: not TOML: invalid value"]
    assert problems_of("a = " + "[" * 1000)[0].startswith("c.toml: not TOML: ")


def test_a_byte_order_mark_is_no_problem() -> None:
    assert parse_config("\ufeff" + GOOD, "c.toml").services["kimi"].host == "gpu1"


def test_secrets_in_the_wrong_place_are_not_repeated() -> None:
    secret = "sk-123456789"
    text = (
        GOOD
        + f'api_key = "{secret}"\napi_key_env = "{secret}"\nendpoint = "http://a:{secret}@h"\ndrain_s = "{secret}"\n'
    )
    found = problems_of(text)
    assert len(found) == 4
    assert secret not in "".join(found)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a = 1\nb = '\xff'\n")
    for name, words in (("none", ": no such file"), (".", ": is a directory"), ("binary", ":2: not UTF-8 text")):
        with pytest.raises(ConfigError) as caught:
            load_config(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}{words}"


def test_paths_of_this_machine_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    path = tmp_path / "c.toml"
    path.write_text('[daemon]\nstate_dir = "state"\nsocket = "/s"\n[hosts.a]\nssh_config = "~/x"\n')
    config = load_config(path)
    assert config.daemon.state_dir == str(tmp_path / "state")
    assert config.daemon.socket == "/s"
    assert config.hosts["a"].ssh_config == "/home/me/x"
