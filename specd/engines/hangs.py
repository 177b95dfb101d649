"""Where a start hangs, and what such a hang mostly is: by the stage reached and by the log's last own words."""

import re
from collections.abc import Sequence

from specd.engines.engine import Stage

__all__ = ["hang_hint"]

_WAITS = (
    (
        re.compile(r"using nccl==|NCCL INFO|Found nccl from|world_size=\d+ rank=|init_process_group|backend=nccl|Gloo"),
        "its last words are of the workers' group: NCCL waits for a peer; P2P (NCCL_P2P_DISABLE=1 tells), IOMMU, ACS"
        " and the network interface (NCCL_SOCKET_IFNAME)",
    ),
    (
        re.compile(r"huggingface|[Dd]ownloading|Fetching \d+ files|modelscope"),
        "its last words are of a download: use a local path, or HF_HUB_OFFLINE=1",
    ),
    (
        re.compile(r"[Aa]utotun|flashinfer\.jit|JIT|[Nn]inja|DeepGEMM warmup"),
        "its last words are of kernels that it builds or tunes: the first start of a version can take long; "
        "`specd extend` gives more time",
    ),
)
_STAGES = {
    "": "the program said nothing that its engine would say: see what stands in front of the server",
    Stage.LAUNCH: "imports from a slow disk, or a hub that does not answer (HF_HUB_OFFLINE=1)",
    Stage.CONFIG: "the workers' group does not come together (NCCL), or a hub does not answer",
    Stage.WEIGHTS: "the disk or network file system under the model does not deliver: see iostat, and the kernel's log",
    Stage.COMPILE: "a compiler hangs, or waits for the lock of a cache: try a fresh VLLM_CACHE_ROOT",
    Stage.CAPTURE: "graph capture waits for a rank that is stuck: try without custom all-reduce, or --enforce-eager",
    Stage.SERVER: "the server is up and does not go on: see the candidate's log",
}


def hang_hint(stage: str, last_lines: Sequence[str]) -> str:
    """Return what a start that stands still in a stage mostly waits for; the log's last three lines tell more than
    the stage."""
    for line in reversed(last_lines[-3:]):
        for pattern, hint in _WAITS:
            if pattern.search(line):
                return hint
    return _STAGES.get(stage, "see the candidate's log")
