"""Generated command lines and environments through a real systemd: what arrives is what was meant, byte for byte.

Counts are printed (pytest -s); each run has the same cases, made from the seeds below.
"""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from specd.errors import UnitError
from specd.services.service import Candidate
from specd.services.systemd.envfile import parse_environment
from specd.services.systemd.scope import Scope
from specd.services.systemd.variables import read_environment
from tests.host.systemd_rig import closed_hosts, connect, manager_on  # noqa: F401
from tests.host.unit_cases import (
    ODD_CASES,
    STANDING,
    STANDS,
    drawn,
    ended,
    ordinary_cases,
    put_all,
    put_recorder,
    recorded,
    started,
)
from tests.host.unit_texts import command, environment_file, environment_lines
from tests.testhost import TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

SEED = 20
# What systemd sets anew at each start.
OF_A_START = {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"}
NOT_UTF8 = [b"\xff", b"\0", b"\xed\xa0\x80", b"\xef\xb7\x90", b"\xc0\x80", b"\n# caf\xe9\nB=1"]
HUGE: list[tuple[list[str], dict[str, str]]] = [
    (["x" * 100_000] * 30, {}),
    ([], {f"V{number}": "x" * 100_000 for number in range(20)}),
    (["x" * 100_000] * 15, {}),
    (["é" * 60_000] * 8, {"V": "é" * 60_000}),
]
UNITS = "/run/systemd/system"


async def test_written_words_and_variables_arrive_as_meant(testhost: TestHost) -> None:
    testhost.write_unit("diff-base.service", "[Service]\nType=exec\nExecStart=/bin/sh\n")
    manager = manager_on(testhost)
    base = await manager.facts("diff-base.service")
    cases = ordinary_cases(2020, SEED) + drawn(ODD_CASES, 120, SEED) + HUGE
    candidates: list[Candidate] = []
    refused: Counter[str] = Counter()
    for number, (words, env) in enumerate(cases):
        try:
            candidates.append(
                manager.render(
                    base, trial=f"diff{number}", installation="i", argv=(*STANDING, *words), env=env, stop_timeout_s=1
                )
            )
        except UnitError as error:
            refused[re.sub(r"^.*?(?=has|contains|is )|\d+ bytes|U\+\w+", "", error.what)] += 1
    for at in range(0, len(candidates), 500):
        batch = candidates[at : at + 500]
        files = {path: body for item in batch for path, body in {item.path: item.content, **item.side_files}.items()}
        names = [item.name for item in batch]
        put_all(testhost, files)
        try:
            given = started(testhost, names)
            for item in batch:
                assert item.name in given, f"seed {SEED}: {item.name} did not start: {item.argv!r:.500}"
                words, environment = given[item.name]
                assert tuple(words) == item.argv, f"seed {SEED}, {item.name}"
                assert chosen(environment, item.environment) == dict(item.environment), f"seed {SEED}, {item.name}"
        finally:
            ended(testhost, names, list(files))
    print(f"\nwritten, seed {SEED}: {len(cases)} cases, {len(candidates)} equal, refused: {dict(refused)}")
    assert len(candidates) >= 2000
    assert sum(refused.values()) < 120


def chosen(environment: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str | None]:
    return {name: environment.get(name) for name in names}


def unit_files(rng: random.Random, name: str, number: int, kind: str, keys: Sequence[str]) -> dict[str, str]:
    """Return a unit's files: half of them set everything in a drop-in that clears what the unit's own file says."""
    own, other = f"/etc/texts/{number}.env", f"/etc/texts/{number}-last.env"
    lines = environment_lines(rng, [own])
    lines += [f"ExecStart={command(rng, key)}" for key in keys]
    # A unit that is over takes a dynamic user's files in /dev/shm with it.
    head = f"[Service]\nType={kind}\nRemainAfterExit=yes\n"
    files = {own: environment_file(rng), other: environment_file(rng)}
    if rng.random() < 0.5:
        files[f"{UNITS}/{name}"] = f"{head}Environment=A=main OLD=1\nExecStart=/bin/false\n"
        tail = f"EnvironmentFile=-{other}\n"
        return files | {f"{UNITS}/{name}.d/10-x.conf": "\n".join(["[Service]", "ExecStart=", *lines, tail])}
    return files | {f"{UNITS}/{name}": "\n".join([head, *lines, ""])}


async def test_what_is_read_is_what_systemd_runs(testhost: TestHost) -> None:
    rng = random.Random(SEED)
    commands, units = 20, 105
    put_recorder(testhost)
    testhost.systemctl("set-environment", "FOO=the manager's", "A=from the manager")
    names = [f"text@{number}.service" if number % 3 == 0 else f"text{number}.service" for number in range(units)]
    files = {"/etc/texts/glob-1.env": "FOO=1\n", "/etc/texts/glob-B.env": "C='g 2'\n", "/etc/texts/glob-a.env": "C=a\n"}
    for number, name in enumerate(names):
        files |= unit_files(rng, name, number, "oneshot", [f"{number}.{place}" for place in range(commands)])
    put_all(testhost, files)
    scope = Scope(connect(testhost), "system", "")
    equal, stillborn = 0, 0
    try:
        testhost.systemctl("daemon-reload")
        testhost.systemctl("start", *names, check=False)
        given = recorded(testhost)
        for number, name in enumerate(names):
            properties = await scope.unit(name)
            environment = await read_environment(scope, name, properties)
            read = {item.argv[2]: item for item in properties.commands("ExecStart") if len(item.argv) > 2}
            for place in range(commands):
                key = f"{number}.{place}"
                if key not in given:
                    # A command before it failed, or the unit's directories could not be made.
                    stillborn += 1
                    continue
                words, real = given[key]
                shown = f"seed {SEED}, {name}: {read[key]}"
                assert environment.words(read[key]) == tuple(words), shown
                assert {name: real[name] for name in real.keys() - OF_A_START} == dict(environment.whole), shown
                equal += 1
    finally:
        testhost.systemctl("unset-environment", "FOO", "A")
        ended(testhost, names, [*files, *(f"{UNITS}/{name}.d" for name in names)])
    print(f"\nread, seed {SEED}: {units * commands} cases, {equal} equal, {stillborn} not run")
    assert equal >= 2000


async def test_a_candidate_runs_what_the_baseline_runs_plus_the_change(testhost: TestHost) -> None:
    rng = random.Random(SEED)
    put_recorder(testhost)
    names = [f"plus@{number}.service" if number % 3 == 0 else f"plus{number}.service" for number in range(80)]
    files = {"/etc/texts/glob-1.env": "FOO=1\n"}
    for number, name in enumerate(names):
        files |= unit_files(rng, name, number, "exec", [STANDS])
    put_all(testhost, files)
    before = started(testhost, names)
    testhost.systemctl("kill", "--signal=KILL", *names)
    manager = manager_on(testhost)
    bases = [await manager.facts(name) for name in names]
    changes = {"MORE": "$1 %n", "A": "the trial's", "C": None}
    candidates = [
        manager.render(
            base, trial=f"p{number}", installation="i", argv=(*base.argv, "one more"), env=changes, stop_timeout_s=1
        )
        for number, base in enumerate(bases)
    ]
    sides = {path: body for item in candidates for path, body in {item.path: item.content, **item.side_files}.items()}
    put_all(testhost, sides)
    try:
        after = started(testhost, [item.name for item in candidates])
        # One that could not start, for its directories are another user's, can't be compared.
        assert len(before) > 50
        for base, candidate in zip(bases, candidates, strict=True):
            if base.name not in before:
                continue
            shown = f"seed {SEED}, {base.text}"
            was, now = before[base.name], after[candidate.name]
            words = [word.replace(candidate.name, base.name) for word in now.words]
            assert words == [*was.words, "one more"], shown
            expected = {**was.environment, **changes}
            assert {
                name: value.replace(candidate.name, base.name)
                for name, value in now.environment.items()
                if name not in OF_A_START
            } == {name: value for name, value in expected.items() if name not in OF_A_START and value is not None}, (
                shown
            )
    finally:
        ended(
            testhost,
            [*names, *(item.name for item in candidates)],
            [*files, *sides, *(f"{UNITS}/{n}.d" for n in names)],
        )
    print(f"\ncandidates, seed {SEED}: {len(names)} cases, {len(before)} equal, {len(names) - len(before)} not run")


async def test_broken_texts_are_read_as_systemd_runs_them_or_refused(testhost: TestHost) -> None:
    rng = random.Random(SEED)
    put_recorder(testhost)
    names = [f"broken{number}.service" for number in range(160)]
    head = "[Service]\nType=exec\nEnvironment='A=a  b' B=c\n"
    files = {f"{UNITS}/{name}": f"{head}ExecStart={command(rng, STANDS, is_broken=True)}\n" for name in names}
    put_all(testhost, files)
    outcomes: Counter[str] = Counter()
    try:
        given = started(testhost, names)
        manager = manager_on(testhost)
        for name in names:
            try:
                facts = await manager.facts(name)
            except UnitError as error:
                outcomes[error.what.removeprefix(f"{name}: ")] += 1
                assert name not in given, f"seed {SEED}: systemd runs it: {files[f'{UNITS}/{name}']!r}"
                continue
            assert tuple(given[name].words) == facts.argv, f"seed {SEED}: {files[f'{UNITS}/{name}']!r}"
            outcomes["equal"] += 1
    finally:
        ended(testhost, names, list(files))
    print(f"\nbroken, seed {SEED}: {len(names)} cases, {dict(outcomes)}")
    assert outcomes["equal"] > 20
    assert outcomes["equal"] < len(names)


async def test_environment_files_are_read_as_systemd_reads_them(testhost: TestHost) -> None:
    rng = random.Random(SEED)
    names = [f"envread{number}.service" for number in range(500)]
    contents = {name: environment_file(rng).encode() for name in names}
    for name in names[:60]:
        place = rng.randrange(len(contents[name]) + 1)
        contents[name] = contents[name][:place] + rng.choice(NOT_UTF8) + contents[name][place:]
    unit = "[Service]\nType=exec\nEnvironmentFile=/etc/texts/{}.env\nExecStart=/bin/sh -c 'kill -STOP $$$$'\n"
    files: dict[str, str | bytes] = {f"/etc/texts/{name}.env": content for name, content in contents.items()}
    files |= {f"{UNITS}/{name}": unit.format(name) for name in names}
    put_all(testhost, files)
    version = await Scope(connect(testhost), "system", "").version()
    refused = 0
    try:
        given = started(testhost, names)
        for name, content in contents.items():
            try:
                read = parse_environment(content, version=version)
            except ValueError:
                refused += 1
                assert name not in given
                continue
            real = {key: value for key, value in given[name].environment.items() if key not in {*OF_A_START, *read}}
            assert real.keys() - {"USER"} == {"PATH", "LANG"}, f"seed {SEED}, {content!r}"
            assert chosen(given[name].environment, read) == read, f"seed {SEED}, {content!r}"
    finally:
        ended(testhost, names, list(files))
    print(
        f"\nenvironment files, seed {SEED}: {len(names)} cases, {len(names) - refused} equal, {refused} refused by both"
    )
