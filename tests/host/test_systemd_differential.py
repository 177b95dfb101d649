"""Generated command lines and environments through a real systemd: what arrives is what was meant, byte for byte."""

import io
import random
import shlex
import tarfile
from collections.abc import Mapping

import pytest

from specd.checks import failures
from specd.services.service import Candidate
from tests.host.systemd_rig import DUMP, closed_hosts, manager_on, put_dump, random_word, read_dump, until  # noqa: F401
from tests.testhost import TestHost

pytestmark = [pytest.mark.host, pytest.mark.usefixtures("closed_hosts")]

BATCH = 60


async def start_all(host: TestHost, names: list[str]) -> None:
    host.systemctl("daemon-reload")
    host.systemctl("start", "--no-block", *names)

    async def all_there() -> bool:
        listed = set(host.exec(["ls", "/tmp/dump"], check=False).stdout.split())
        return all(f"{name}.cmdline" in listed for name in names)

    await until(all_there, within_s=60, what="a batch of units to run")


def clear(host: TestHost, names: list[str], files: str) -> None:
    host.systemctl("kill", "--signal=KILL", *names, check=False)
    host.exec(["sh", "-c", f"rm -rf /tmp/dump {files}"])
    host.systemctl("daemon-reload")
    host.systemctl("reset-failed", check=False)


def put_candidates(host: TestHost, candidates: list[Candidate]) -> None:
    """Write many candidates at once."""
    put_all(host, {p: c for item in candidates for p, c in {item.path: item.content, **item.side_files}.items()})


def put_all(host: TestHost, files: Mapping[str, str | bytes]) -> None:
    """Write many files by one command."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            body = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    host.exec(["tar", "-x", "-C", "/", "--no-same-owner"], stdin=packed.getvalue())


@pytest.mark.parametrize("batch", range(6))
async def test_written_words_and_variables_arrive_as_meant(testhost: TestHost, batch: int) -> None:
    seed = 1000 + batch
    rng = random.Random(seed)
    put_dump(testhost)
    testhost.write_unit("diff-base.service", f"[Service]\nType=exec\nExecStart={DUMP}\n")
    manager = manager_on(testhost)
    base = await manager.facts("diff-base.service")
    candidates = [
        manager.render(
            base,
            trial=f"diff{batch}x{number}",
            installation="test",
            argv=(DUMP, *(random_word(rng) for _ in range(rng.randrange(1, 25)))),
            env={f"V{place}": random_word(rng, 20) for place in range(rng.randrange(1, 6))},
            stop_timeout_s=1,
        )
        for number in range(BATCH)
    ]
    put_candidates(testhost, candidates)
    names = [candidate.name for candidate in candidates]
    try:
        await start_all(testhost, names)
        for candidate in candidates:
            words, environment = read_dump(testhost, candidate.name)
            assert words == list(candidate.argv), f"seed {seed}, {candidate.name}"
            given = {name: environment.get(name) for name in candidate.environment}
            assert given == dict(candidate.environment), f"seed {seed}, {candidate.name}"
        for candidate in candidates[:5]:
            assert not failures(await manager.examine(candidate)), f"seed {seed}, {candidate.name}"
    finally:
        clear(testhost, names, "/run/systemd/system/specd-diff*")


# Pieces of ExecStart= text that systemd takes, in every form it has for words.
TEXTS = [
    "plain", "--flag=value", "'single quoted'", '"double \\" quoted"', "mid'dle q'uote", '--json=\'{"a": 1}\'',
    "\\x41\\n", "\\u00e9", "\\101", "$LIST", "${LIST}", "$UNSET", "${UNSET}", "pre${LIST}post", '"$LIST"',
    "'${QUOTED}'", "$QUOTED", "$$", "$$LIST", "$${LIST}", "a$LIST", "${UNFINISHED", "${A:-b}", "%%", "%n", "%p", "%N",
    "100%%", "''", '""', "\\;", "a;b", "#hash", "it\\'s", "'\\d+'", "$EMPTY", "${EMPTY}", "$FILEVAR", "${FILEVAR}",
    "\\\n    ", "\\\n# a comment \\\n   ", "$", "x$", "$A$B", "${LIST}${QUOTED}", "日本", "$BACK", "${BACK}",
    "$USERLESS", "${PATH}", "$LANG",
]  # fmt: skip
SETTINGS = """\
Environment="LIST=one two  three" "QUOTED=a 'b c' \\"d e\\" f\\\\\\\\ g" EMPTY=
Environment=BACK=x\\\\\\\\y\\\\x20z LIST2=$LIST
EnvironmentFile=/etc/diff-reading.env
EnvironmentFile=-/etc/diff-missing.env
"""
ENV_CHARS = [
    "a",
    "b",
    " ",
    "  ",
    "'",
    '"',
    "\\",
    "$",
    "`",
    "=",
    "#",
    ";",
    "\t",
    "\n",
    "\nK=",
    "\n# ",
    "\nL='",
    '\nM="',
    "\\\n",
    "é",
]


@pytest.mark.parametrize("batch", range(2))
async def test_what_is_read_is_what_systemd_runs(testhost: TestHost, batch: int) -> None:
    seed = 7000 + batch
    rng = random.Random(seed)
    put_dump(testhost)
    names = [f"reading{batch}x{number}.service" for number in range(BATCH)]
    testhost.put("/etc/diff-reading.env", "FILEVAR=\"from a file\"\nexport NOT=1\nLIST3='x y'\n")
    units = {}
    for name in names:
        text = " ".join(rng.choice(TEXTS) for _ in range(rng.randrange(1, 14)))
        prefix = rng.choice(["", "", ":", "-", "@"])
        own = " my-name" if prefix == "@" else ""
        units[f"/run/systemd/system/{name}"] = f"[Service]\n{SETTINGS}ExecStart={prefix}{DUMP}{own} {text}\n"
    put_all(testhost, units)
    try:
        await start_all(testhost, names)
        manager = manager_on(testhost)
        for name in names:
            facts = await manager.facts(name)
            words, environment = read_dump(testhost, name)
            # The kernel replaces a script's argv[0] by its path.
            assert words[1:] == list(facts.argv[1:]), f"seed {seed}, {facts.text}"
            given = {key: environment.get(key) for key in facts.environment}
            assert given == dict(facts.environment), f"seed {seed}, {facts.text}"
    finally:
        clear(testhost, names, "/run/systemd/system/reading* /etc/diff-reading.env")


async def test_environment_files_are_read_as_systemd_reads_them(testhost: TestHost) -> None:
    seed = 31
    rng = random.Random(seed)
    put_dump(testhost)
    names = [f"envread{number}.service" for number in range(BATCH * 2)]
    contents = {name: "A=" + "".join(rng.choice(ENV_CHARS) for _ in range(rng.randrange(40))) + "\n" for name in names}
    put_all(testhost, {f"/etc/{name}.env": content for name, content in contents.items()})
    unit = "[Service]\nEnvironmentFile=/etc/{}.env\nExecStart=" + DUMP + "\n"
    put_all(testhost, {f"/run/systemd/system/{name}": unit.format(name) for name in names})
    own = {"PATH", "LANG", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID"}
    try:
        await start_all(testhost, names)
        manager = manager_on(testhost)
        for name in names:
            facts = await manager.facts(name)
            _, environment = read_dump(testhost, name)
            given = {key: value for key, value in environment.items() if key not in own}
            assert dict(facts.environment) == given, f"seed {seed}, {contents[name]!r}"
    finally:
        clear(
            testhost,
            names,
            "/run/systemd/system/envread* " + " ".join(shlex.quote(f"/etc/{name}.env") for name in names),
        )
