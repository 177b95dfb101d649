"""Are a model's files on the host, and all of them: config.json, and the weight files that the index names."""

import json
import posixpath
from dataclasses import dataclass
from typing import Any

from specd.checks import Check
from specd.errors import FileProblem, HostError, HostUnreachable
from specd.hosts.host import Host

__all__ = ["check_model", "read_config", "resolve_path", "weight_bytes"]

_INDEX = "model.safetensors.index.json"
_INDEX_LIMIT = 64 * 2**20
_CONFIG_LIMIT = 4 * 2**20
_HEADER_LIMIT = 4 * 2**20
_HEADERS_READ = 16
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.npcache")


@dataclass(frozen=True, slots=True)
class _Files:
    """Weight files that are there (bytes by path), those that should be, and what the index says that all hold."""

    sizes: dict[str, int]
    missing: tuple[str, ...]
    tensor_bytes: int = 0


def resolve_path(model: str, cwd: str) -> str | None:
    """Return the absolute path that a model's name means, None for a name on the hub."""
    if model.startswith("/"):
        return posixpath.normpath(model)
    if model.startswith(("./", "../")) and cwd.startswith("/"):
        return posixpath.normpath(posixpath.join(cwd, model))
    return None


async def check_model(host: Host, name: str, model: str, cwd: str, *, needs_weights: bool = True) -> Check:
    """Check a model directory (or a single file); raises HostUnreachable only."""
    path = resolve_path(model, cwd)
    if path is None:
        return Check.unchecked(name, f"{model} is a name on a model hub, so its files were not looked for")
    try:
        return await _check(host, name, path, needs_weights=needs_weights)
    except HostUnreachable:
        raise
    except HostError as error:
        return Check.unchecked(name, f"{path} can't be looked at: {error}")


async def _check(host: Host, name: str, path: str, *, needs_weights: bool) -> Check:
    kind = (await _run(host, ["stat", "-L", "-c", "%F %s", "--", path])).strip()
    if not kind:
        return Check.failed(name, f"{path} does not exist, or may not be seen", "give a path that exists on the host")
    if not kind.startswith("directory"):
        return Check.passed(name, f"{path} is a file of {_size(int(kind.split()[-1]))}")
    config = await _read(host, posixpath.join(path, "config.json"), _CONFIG_LIMIT)
    if config is None and await _read(host, posixpath.join(path, "params.json"), _CONFIG_LIMIT) is None:
        return Check.failed(name, f"{path} has no config.json", "is it the right directory?")
    if config is not None and not _is_json_object(config):
        return Check.failed(name, f"{path}/config.json is not readable as JSON", "copy the file again")
    if not needs_weights:
        return Check.passed(name, f"{path} has its configuration; weights are not read from it")
    files = await _weights(host, path)
    if files.missing:
        shown = ", ".join(files.missing[:3]) + (", ..." if len(files.missing) > 3 else "")
        return Check.failed(
            name, f"{path} lacks {len(files.missing)} of its weight files: {shown}", "finish the download or copy"
        )
    if not files.sizes:
        return Check.failed(name, f"{path} holds no weight files", "is it the right directory?")
    empty = [file for file, size in files.sizes.items() if size == 0]
    if empty:
        return Check.failed(name, f"{empty[0]} is empty", "copy the file again")
    if cut := await _cut(host, files):
        return Check.failed(name, cut, "copy the file again")
    count = len(files.sizes)
    return Check.passed(
        name, f"{path}: {count} weight file{'s' if count != 1 else ''}, {_size(sum(files.sizes.values()))}"
    )


async def _weights(host: Host, path: str) -> _Files:
    index = await _read(host, posixpath.join(path, _INDEX), _INDEX_LIMIT)
    if index is not None:
        return await _indexed(host, path, index)
    patterns = [word for pattern in _WEIGHTS for word in ("-o", "-name", pattern)][1:]
    command = ["find", "-L", path, "-maxdepth", "1", "-type", "f", "(", *patterns, ")", "-printf", "%s %p\\n"]
    return _Files(_sizes(await _run(host, command)), ())


async def _indexed(host: Host, path: str, index: bytes) -> _Files:
    try:
        content = json.loads(index)
        names = sorted({str(file) for file in content["weight_map"].values()})
        metadata = content.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else 0
    except (ValueError, KeyError, TypeError, AttributeError):
        return _Files({}, (f"{_INDEX} (not readable)",))
    wanted = [posixpath.join(path, file) for file in names]
    sizes: dict[str, int] = {}
    for start in range(0, len(wanted), 500):
        sizes |= _sizes(await _run(host, ["stat", "-L", "-c", "%s %n", "--", *wanted[start : start + 500]]))
    missing = tuple(posixpath.basename(file) for file in wanted if file not in sizes)
    return _Files(sizes, missing, int(total) if isinstance(total, int | float) else 0)


async def _cut(host: Host, files: _Files) -> str:
    """Return which weight file is shorter than it says itself, "" for none that is known to be.

    The files of an index hold at least what it says that the tensors take; only if they don't, or there is no index,
    each file's own header is read. (safetensors: 8 bytes with the header's length, the header as JSON, the tensors)
    """
    tensors = {path: size for path, size in files.sizes.items() if path.endswith(".safetensors")}
    if not tensors or (files.tensor_bytes and sum(tensors.values()) >= files.tensor_bytes):
        return ""
    for path, size in list(tensors.items())[:_HEADERS_READ]:
        content = await _read_start(host, path)
        if content is not None and (cut := _cut_file(path, size, content)):
            return cut
    if files.tensor_bytes:
        short = files.tensor_bytes - sum(tensors.values())
        return f"the weight files are {_size(short)} shorter than their index says"
    return ""


def _cut_file(path: str, size: int, content: bytes) -> str:
    """Return in words that a file is shorter than its header says; `content` is its beginning."""
    length = int.from_bytes(content[:8], "little")
    if size < 8 + length:
        return f"{path} is cut: it ends inside its header"
    try:
        header = json.loads(content[8 : 8 + length])
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return ""
    whole = 8 + length + max(ends, default=0)
    return f"{path} is cut: it has {_size(size)} of {_size(whole)}" if size < whole else ""


async def _read_start(host: Host, path: str) -> bytes | None:
    command = ["head", "-c", str(_HEADER_LIMIT), "--", path]
    answer = await host.run(command, check=False)
    if answer.status != 0:
        answer = await host.run(command, check=False, privileged=True)
    return answer.stdout if answer.status == 0 and len(answer.stdout) >= 8 else None


async def weight_bytes(host: Host, path: str) -> int:
    """Return how many bytes of weights a model's directory, or a single file, holds; 0 where that can't be told."""
    try:
        kind = (await _run(host, ["stat", "-L", "-c", "%F %s", "--", path])).strip()
        if kind and not kind.startswith("directory"):
            return int(kind.split()[-1])
        return sum((await _weights(host, path)).sizes.values()) if kind else 0
    except HostUnreachable:
        raise
    except HostError:
        return 0


async def read_config(host: Host, path: str) -> dict[str, Any]:
    """Return the config.json of a model's directory, {} where there is none that can be read; raises HostError."""
    content = await _read(host, posixpath.join(path, "config.json"), _CONFIG_LIMIT)
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sizes(listing: str) -> dict[str, int]:
    rows = (line.split(" ", 1) for line in listing.splitlines() if " " in line)
    return {file: int(size) for size, file in rows if size.isdigit()}


async def _run(host: Host, command: list[str]) -> str:
    """Return a command's stdout, whatever its status; with rights where it shows nothing without."""
    answer = await host.run(command, check=False)
    if answer.status == 0 or "ermission denied" not in answer.error_text:
        return answer.text
    return (await host.run(command, check=False, privileged=True)).text


async def _read(host: Host, path: str, limit: int) -> bytes | None:
    """Return a file's bytes, None if there is none."""
    try:
        return await host.read(path, limit=limit)
    except FileProblem as problem:
        if problem.reason == "missing":
            return None
        if problem.reason != "denied":
            raise
    try:
        return await host.read(path, limit=limit, privileged=True)
    except FileProblem as problem:
        if problem.reason == "missing":
            return None
        raise


def _is_json_object(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except ValueError:
        return False


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
