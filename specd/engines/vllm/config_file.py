"""The YAML file of `--config`: the flags in it count as if they stood right behind the model; the command line wins.

vLLM takes the file only as `--config FILE`, once; of `--config=FILE` it reads nothing. (vllm/utils/argparse_utils.py)
"""

import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from specd.engines.change import read_flags
from specd.engines.engine import FileFlags
from specd.engines.flags import FlagTable
from specd.errors import EngineError, FileProblem
from specd.hosts.host import Host

__all__ = ["read_config_file"]


async def read_config_file(host: Host, table: FlagTable, path: str, directory: str) -> FileFlags:
    """Read the flags that stand in a file; raises EngineError for one that the engine would not take either."""
    full = path if path.startswith("/") else posixpath.join(directory.lstrip("-!") or "/", path)
    if not path.endswith((".yaml", ".yml")):
        raise EngineError(f"--config {path} does not end in .yaml or .yml, which vLLM refuses")
    try:
        text = (await host.read(full)).decode()
    except FileProblem as error:
        raise EngineError(f"the file of --config can't be read: {error.what}") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise EngineError(f"{full} is no YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(content, dict):
        raise EngineError(f"{full} holds no flags: its top level is no mapping")
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value} if node is not None else {}
    flags = read_flags(table, _words(table, content))
    return FileFlags(path=full, flags=flags, lines={table.find(name).name: line for name, line in lines.items()})


def _words(table: FlagTable, content: Mapping[str, Any]) -> Sequence[str]:
    """Return the words that the engine makes of a file."""
    words: list[str] = []
    for key, value in content.items():
        match value:
            case True:
                words.append(f"--{key}")
            case False:
                # Only a flag that has such a form is turned off; of others nothing is said.
                if table.find(str(key)).kind.value == "pair":
                    words.append(f"--no-{key}")
            case list():
                words += [f"--{key}", *map(str, value)] if value else []
            case dict():
                words += [f"--{key}", json.dumps(value)]
            case _:
                words += [f"--{key}", str(value)]
    return words
