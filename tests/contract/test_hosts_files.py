"""Reading, replacing and removing files, on this machine and over SSH."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specd.errors import FileProblem
from specd.hosts import Host
from tests.contract.test_hosts_commands import host, is_running, until

__all__ = ["host"]

AS_ROOT = os.geteuid() == 0


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


async def reason_of_write(host: Host, path: str) -> str:
    with pytest.raises(FileProblem) as caught:
        await host.write(path, b"content")
    assert caught.value.path == path
    assert path in str(caught.value)
    return caught.value.reason


async def test_write_and_read(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "specd-a b'\\x2d@.service"
    content = bytes(range(256)) * 300
    await host.write(str(path), content, mode=0o600)
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await host.read(str(path)) == content
    await host.write(str(path), b"")
    assert path.read_bytes() == b""
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert await host.read(str(path)) == b""
    assert [name for name in names(tmp_path) if name.startswith("specd-a")] == [path.name]


async def test_a_link_is_replaced_not_followed(host: Host, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("untouched")
    (tmp_path / "link").symlink_to(target)
    await host.write(str(tmp_path / "link"), b"new")
    assert not (tmp_path / "link").is_symlink()
    assert target.read_text() == "untouched"


@pytest.mark.skipif(not AS_ROOT, reason="only root can give files away")
async def test_owner_is_kept(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "owned"
    path.write_text("old")
    os.chown(path, 12345, 23456)
    await host.write(str(path), b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 23456)
    assert path.read_text() == "new"


async def test_problems_have_reasons_and_leave_nothing(host: Host, tmp_path: Path) -> None:
    assert await reason_of_write(host, f"{tmp_path}/none/x") == "missing"
    (tmp_path / "file").write_text("")
    assert await reason_of_write(host, f"{tmp_path}/file/x") == "missing"
    (tmp_path / "directory").mkdir()
    assert await reason_of_write(host, f"{tmp_path}/directory") == "other"
    for odd in ("relative/path", f"{tmp_path}/", f"{tmp_path}/.."):
        assert await reason_of_write(host, odd) == "other"
    assert [name for name in names(tmp_path) if "tmp-" in name] == []
    with pytest.raises(FileProblem, match="does not exist") as caught:
        await host.read(f"{tmp_path}/none")
    assert caught.value.reason == "missing"
    with pytest.raises(FileProblem):
        await host.read(str(tmp_path))


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
async def test_full_disk_is_named(host: Host) -> None:
    done = await host.run(["sh", "-c", "cat >/dev/full"], stdin=b"x", check=False)
    assert "No space left on device" in done.error_text, "the words that files.py looks for"


@pytest.mark.skipif(AS_ROOT, reason="root may do all; with a real sshd another user tries this")
async def test_denied(host: Host, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert await reason_of_write(host, f"{tmp_path}/closed/x") == "denied"
    (tmp_path / "secret").write_text("")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(FileProblem) as caught:
        await host.read(f"{tmp_path}/secret")
    assert caught.value.reason == "denied"


async def test_too_long_to_read(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1001)
    assert len(await host.read(str(tmp_path / "file"), limit=1001)) == 1001
    with pytest.raises(FileProblem, match="longer than 1000 bytes"):
        await host.read(str(tmp_path / "file"), limit=1000)
    with pytest.raises(FileProblem, match="longer than"):
        await host.read("/dev/zero", limit=2**20)


async def test_remove(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    await host.remove(str(path))
    assert not path.exists()
    await host.remove(str(path))
    (tmp_path / "directory").mkdir()
    with pytest.raises(FileProblem):
        await host.remove(str(tmp_path / "directory"))


async def test_a_reader_never_sees_a_part(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "unit"
    versions = [bytes([65 + number]) * 200_000 for number in range(8)]
    path.write_bytes(versions[0])
    seen: set[bytes] = set()
    stop = False

    def read() -> int:
        count = 0
        while not stop:
            seen.add(path.read_bytes())
            count += 1
        return count

    reading = asyncio.create_task(asyncio.to_thread(read))
    for turn in range(40):
        await host.write(str(path), versions[turn % len(versions)])
    stop = True
    assert await reading > 40
    assert len(seen) > 1
    assert seen <= set(versions)


async def test_old_leftovers_go_and_young_ones_stay(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "specd-[a]*.service"
    old, young = (tmp_path / f"{path.name}.tmp-{digits}" for digits in ("00000000", "0123abcd"))
    other = tmp_path / "specd-a.service.tmp-00000000"
    for file in (old, young, other):
        file.write_text("half")
    for file in (old, other):
        os.utime(file, (time.time() - 3600, time.time() - 3600))
    await host.write(str(path), b"new")
    assert not old.exists()
    assert young.exists()
    assert other.exists()


async def test_cancelled_writes_leave_old_or_new(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "unit"
    old, new = b"old" * 50_000, b"new" * 50_000
    path.write_bytes(old)
    for step in range(25):
        task = asyncio.create_task(host.write(str(path), new))
        await asyncio.sleep(step * 0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert path.read_bytes() in (old, new)
    await until(lambda: not is_running("write"))
    assert path.read_bytes() in (old, new)
    await host.write(str(path), old)
    assert path.read_bytes() == old


WRITER = """
import asyncio, sys
from pathlib import Path
from specd.hosts import open_host
from specd.settings import HostSettings

async def main():
    host = open_host(HostSettings(name="here"), Path(sys.argv[2]))
    print("ready", flush=True)
    for turn in range(100000):
        await host.write(sys.argv[1], bytes([65 + turn % 26]) * 100_000)

asyncio.run(main())
"""


def test_killed_writer_leaves_one_whole_version(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    path.write_bytes(b"0" * 100_000)
    for turn in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(0.02 + turn * 0.013)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        content = path.read_bytes()
        assert len(content) == 100_000
        assert len(set(content)) == 1
