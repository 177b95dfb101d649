"""Are a model's files on the host, and all of them: config.json, and the weight files that the index names."""

import json
import posixpath
from dataclasses import dataclass

from specd.checks import Check
from specd.errors import FileProblem, HostError, HostUnreachable
from specd.hosts.host import Host

__all__ = ["check_model", "resolve_path"]

_INDEX = "model.safetensors.index.json"
_INDEX_LIMIT = 64 * 2**20
_CONFIG_LIMIT = 4 * 2**20
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.npcache")


@dataclass(frozen=True, slots=True)
class _Files:
    """Weight files that are there (bytes by path) and those that should be."""

    sizes: dict[str, int]
    missing: tuple[str, ...]


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
        weight_map = json.loads(index)["weight_map"]
        names = sorted({str(file) for file in weight_map.values()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return _Files({}, (f"{_INDEX} (not readable)",))
    wanted = [posixpath.join(path, file) for file in names]
    sizes: dict[str, int] = {}
    for start in range(0, len(wanted), 500):
        sizes |= _sizes(await _run(host, ["stat", "-L", "-c", "%s %n", "--", *wanted[start : start + 500]]))
    missing = tuple(posixpath.basename(file) for file in wanted if file not in sizes)
    return _Files(sizes, missing)


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
