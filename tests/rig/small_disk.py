"""A directory on a disk that a test can fill to the last byte."""

import errno
import subprocess
from pathlib import Path

__all__ = ["SmallDisk"]

_FILLER = ".filler"
_BLOCK = b"\0" * 65536


class SmallDisk:
    """A tmpfs mounted over a directory until `close`; raises OSError where this user may not mount."""

    def __init__(self, path: Path, size_mib: int = 64) -> None:
        self.path = path
        path.mkdir(mode=0o700, exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=700", "tmpfs", str(path)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(errno.EPERM, f"a small disk can't be mounted: {done.stderr.strip()}", str(path))

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.path / _FILLER).open("ab", buffering=0) as filler:
            for block in (_BLOCK, _BLOCK[:4096]):
                try:
                    while True:
                        filler.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def relieve(self) -> None:
        """Give the room back."""
        (self.path / _FILLER).unlink(missing_ok=True)

    def close(self) -> None:
        """Take the disk away, whatever still uses it."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True, capture_output=True)
