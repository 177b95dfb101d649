"""Files and rights as they really are: atomic over OpenSSH, by sudo with a narrow sudoers file, on full disks."""

import asyncio
import contextlib
import time
from pathlib import Path

import pytest

from specd.errors import FileProblem, HostUnreachable, PrivilegeRefused
from tests.host.test_hosts_real import MakeHost, opened, processes, until
from tests.testhost import HostOptions, TestHost

pytestmark = pytest.mark.host

UNITS = "/etc/systemd/system"
NAME = r"specd-[A-Za-z0-9@_.-]+"
NARROW = ", ".join(
    (
        rf"/usr/bin/tee ^{UNITS}/{NAME}$",
        rf"/usr/bin/chmod ^[0-7]{{4}} {UNITS}/{NAME}$",
        rf"/usr/bin/sync ^{UNITS}(/{NAME})?$",
        rf"/usr/bin/cat ^{UNITS}/{NAME}$",
        rf"/usr/bin/mv ^-fT {UNITS}/{NAME} {UNITS}/{NAME}$",
        rf"/usr/bin/rm ^-f {UNITS}/{NAME}$",
    )
)
SUDOERS = f"operator ALL=(root) NOPASSWD: {NARROW}"


async def test_atomic_with_a_reader_on_the_host(testhost: TestHost, tmp_path: Path) -> None:
    path = f"{UNITS}/specd-atomic.service"
    reader = (
        "import pathlib, sys, time\npath = pathlib.Path(sys.argv[1])\ntorn = 0\nseen = set()\ncount = 0\n"
        "print('up', flush=True)\nend = time.time() + 3\n"
        "while time.time() < end:\n"
        "    text = path.read_bytes(); count += 1; seen.add(text[:1])\n"
        "    torn += len(text) != 60000 or len(set(text)) != 1\n"
        "print(count, len(seen), torn, flush=True)\n"
    )
    async with opened(testhost, tmp_path) as host:
        await host.write(path, b"0" * 60_000)
        async with host.follow(["python3", "-c", reader, path]) as lines:
            assert await anext(lines) == b"up"
            ended = asyncio.ensure_future(anext(lines))
            turn = 0
            while not ended.done():
                await host.write(path, bytes([65 + turn % 26]) * 60_000)
                turn += 1
            count, seen, torn = map(int, (await ended).split())
        assert turn > 20
        assert count > 20
        assert seen > 5
        assert torn == 0
        await host.remove(path)


async def test_cut_and_killed_writes_leave_old_or_new(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host()
    path = f"{UNITS}/specd-cut.service"
    old, new = b"old" * 300_000, b"new" * 300_000
    async with opened(machine, tmp_path) as host:
        await host.write(path, old)
        for step in range(12):
            task = asyncio.create_task(host.write(path, new))
            await asyncio.sleep(0.004 * step)
            await asyncio.to_thread(machine.exec, ["pkill", "-KILL", "-f", "sshd: root@"], check=False)
            await asyncio.gather(task, return_exceptions=True)
            assert machine.get(path) in (old, new)
            with contextlib.suppress(HostUnreachable):
                await host.write(path, old)
        await asyncio.sleep(0.5)
        assert machine.get(path) in (old, new)


async def test_a_shell_killed_at_any_step_leaves_old_or_new(testhost: TestHost, tmp_path: Path) -> None:
    path = f"{UNITS}/specd-step.service"
    old, new = b"old" * 300_000, b"new" * 300_000
    async with opened(testhost, tmp_path) as host:
        for step in ("cat", "chmod", "sha256sum", "sync", "mv", "find"):
            await host.write(path, old)
            fake = f"/root/fake-{step}"
            testhost.exec(["mkdir", "-p", fake])
            # In place of the step: the script that runs it is killed before it.
            testhost.put(f"{fake}/{step}", "#!/bin/sh\nkill -KILL $PPID\n", mode=0o755)
            testhost.put("/root/.bashrc", f"PATH={fake}:$PATH\n")
            with pytest.raises(HostUnreachable):
                await host.write(path, new)
            testhost.put("/root/.bashrc", "")
            assert testhost.get(path) in (old, new), step
            assert (testhost.get(path) == new) == (step == "find"), step
        await host.remove(path)
        testhost.exec(["sh", "-c", f"rm -f {path}.tmp-*"])


async def test_directory_read_only_and_disk_full(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host(HostOptions(operator_sudoers=SUDOERS))
    path = f"{UNITS}/specd-x.service"
    for user in ("root", "operator"):
        async with opened(machine, tmp_path, user=user) as host:
            await host.write(path, b"old", privileged=True)
            machine.make_readonly(UNITS)
            with pytest.raises(FileProblem) as caught:
                await host.write(path, b"new", privileged=True)
            assert caught.value.reason == "read-only"
            with pytest.raises(FileProblem) as caught:
                await host.remove(path, privileged=True)
            assert caught.value.reason == "read-only"
            machine.make_writable(UNITS)
            machine.fill(UNITS)
            with pytest.raises(FileProblem) as caught:
                await host.write(path, b"new" * 100_000, privileged=True)
            assert caught.value.reason == "no-space"
            assert machine.get(path) == b"old"
            assert machine.exec(["sh", "-c", f"ls {UNITS}/*.tmp-*"], check=False).stdout == ""
            machine.unfill(UNITS)
            assert machine.get(path) == b"old"
            await host.remove(path, privileged=True)


async def test_narrow_rights_are_enough_for_unit_files_and_no_more(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host(HostOptions(operator_sudoers=SUDOERS))
    path = f"{UNITS}/specd-kimi@ngram-5.service"
    async with opened(machine, tmp_path, user="operator") as host:
        for content in (b"first\xff\0", b"second" * 50_000):
            await host.write(path, content, privileged=True)
            assert machine.get(path) == content
            assert await host.read(path, privileged=True) == content
        assert machine.exec(["stat", "-c", "%a %U", path]).stdout == "644 root\n"
        await host.write(path, b"secret", mode=0o600, privileged=True)
        assert machine.exec(["stat", "-c", "%a", path]).stdout == "600\n"
        assert await host.read(path, privileged=True) == b"secret"
        with pytest.raises(FileProblem) as caught:
            await host.read(path)
        assert caught.value.reason == "denied"
        machine.exec(["touch", "-d", "1 hour ago", f"{path}.tmp-0123abcd"])
        await host.write(path, b"last", privileged=True)
        assert machine.exec(["sh", "-c", f"ls {UNITS}/specd-*"]).stdout.split() == [path]
        await host.remove(path, privileged=True)
        await host.remove(path, privileged=True)
        with pytest.raises(FileProblem) as caught:
            await host.write(path, b"x")
        assert caught.value.reason == "denied"
        for refused in (f"{UNITS}/kimi.service", "/etc/shadow", f"{UNITS}/specd-x/../../shadow"):
            with pytest.raises(PrivilegeRefused):
                await host.write(refused, b"x", privileged=True)
        with pytest.raises(PrivilegeRefused) as refusal:
            await host.run(["systemctl", "stop", "ssh"], privileged=True)
        assert refusal.value.reason == "password"


async def test_refusals_of_sudo_come_in_seconds_with_their_reason(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host()
    cases = {
        "operator ALL=(root) ALL": "password",
        "operator ALL=(root) NOPASSWD: ALL\nDefaults:operator requiretty": "tty",
        "operator ALL=(root) NOPASSWD: /usr/bin/true": "password",
        "": "password",
    }
    async with opened(machine, tmp_path, user="operator") as host:
        for rules, reason in cases.items():
            machine.set_sudoers(rules)
            started = time.monotonic()
            with pytest.raises(PrivilegeRefused, match="gpu1") as caught:
                await host.run(["systemctl", "daemon-reload"], privileged=True)
            assert time.monotonic() - started < 5
            assert (caught.value.reason, rules) == (reason, rules)
            assert caught.value.next_step
            with pytest.raises(PrivilegeRefused):
                async with host.follow(["journalctl", "-n1"], privileged=True) as lines:
                    await anext(lines)
        machine.set_sudoers("operator ALL=(root) NOPASSWD: ALL")
        assert (await host.run(["id", "-u"], privileged=True)).text == "0\n"
        assert (await host.run(["sh", "-c", "echo $LC_ALL"], privileged=True)).text == "C.UTF-8\n"
        done = await host.run(["sh", "-c", 'printf %s "$A"'], privileged=True, env={"A": "x y"})
        assert done.text == "x y"
        failed = await host.run(["sh", "-c", "echo 'a password is required' >&2; exit 1"], privileged=True, check=False)
        assert failed.status == 1
        machine.exec(["mv", "/usr/bin/sudo", "/usr/bin/sudo.away"])
        with pytest.raises(PrivilegeRefused, match="not installed"):
            await host.run(["true"], privileged=True)


async def test_a_follower_run_by_sudo_ends_too(make_host: MakeHost, tmp_path: Path) -> None:
    machine = make_host(HostOptions(operator_sudoers="operator ALL=(root) NOPASSWD: /usr/bin/journalctl"))
    async with opened(machine, tmp_path, user="operator") as host:
        async with host.follow(["journalctl", "-f", "-n0", "-o", "json"], privileged=True):
            await until(lambda: bool(processes(machine, "journalctl -f -n0 -o json")))
        await until(lambda: not processes(machine, "journalctl -f -n0 -o json"))
