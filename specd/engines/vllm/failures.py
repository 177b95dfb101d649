"""vLLM's and its libraries' error texts, each with the class it stands for; the first that matches wins."""

import re

from specd.engines.log_rules import FailureRule

__all__ = ["COMMON_FAILURES", "FAILURES"]


def _rule(pattern: str, kind: str, sentence: str = "{line}", hint: str = "", *, transient: bool = False) -> FailureRule:
    return FailureRule(re.compile(pattern, re.DOTALL), kind, sentence, hint, transient)


_USAGE = (
    _rule(
        r"error: unrecognized arguments: (?P<flag>.*)",
        "bad-argument",
        "the engine does not know the argument {flag}",
        "this version may have renamed or removed it",
    ),
    _rule(
        r"error: argument (?P<flag>-[^:]*): (?P<why>.*)",
        "bad-argument",
        "the engine refuses the value of {flag}: {why}",
    ),
    _rule(r": error: (?P<why>.*)", "bad-argument", "the engine refuses its command line: {why}"),
)

_FILES = (
    _rule(
        r"Invalid repository ID or local directory specified: '(?P<path>[^']*)'",
        "missing-file",
        "there is no model at {path}",
        "give a directory that exists on the host and holds a config.json",
    ),
    _rule(
        r"Incorrect path_or_model_id: '(?P<path>[^']*)'",
        "missing-file",
        "there is no model directory {path} on the host",
    ),
    _rule(
        r"Repo id must be in the form .*?: '(?P<path>[^']*)'",
        "missing-file",
        "there is no model directory {path} on the host",
    ),
    _rule(
        r"Cannot find any model weights with `?(?P<path>[^`'\"\s]*)",
        "missing-file",
        "there are no weight files in {path}",
    ),
    _rule(r"(?P<path>\(\S+\)) appears path-like, but doesn't exist", "missing-file", "there is no file {path}"),
    _rule(r"does not appear to have a file named (?P<path>\S+)", "missing-file", "{line}"),
    _rule(r"FileNotFoundError: .*?'(?P<path>[^']+)'", "missing-file", "there is no {path}"),
    _rule(r"FileNotFoundError|NotADirectoryError|No such file or directory", "missing-file"),
    _rule(
        r"Read-only file system(?:: '(?P<path>[^']+)')?",
        "missing-file",
        "the service can't write there: {line}",
        "see ProtectSystem= and ReadWritePaths= of the unit, or how the container binds it",
    ),
    _rule(r"PermissionError: .*?'(?P<path>[^']+)'", "missing-file", "the service's user may not use {path}"),
    _rule(
        r"(?:ModuleNotFoundError|ImportError): .*?pip install (?P<package>[\w.=-]+)",
        "missing-file",
        "a Python package is missing: {package}",
        "install {package} into the service's own environment",
    ),
    _rule(
        r"ModuleNotFoundError: No module named '(?P<package>[^']+)'", "missing-file", "the package {package} is missing"
    ),
    _rule(
        r"safetensors_rust\.SafetensorError|SafetensorError",
        "missing-file",
        "a weight file is damaged or cut short: {line}",
    ),
)

_HUB = (
    _rule(
        r"429 Client Error|Too Many Requests for url",
        "hub",
        hint="use a local path or HF_HUB_OFFLINE=1",
        transient=True,
    ),
    _rule(
        r"50[0234] Server Error|Gateway Time-?out|Max retries exceeded with url|NameResolutionError|ReadTimeout\b"
        r"|We couldn't connect to 'https?://",
        "hub",
        "the model hub could not be reached: {line}",
        "use a local path or HF_HUB_OFFLINE=1",
        transient=True,
    ),
    _rule(
        r"GatedRepoError|RepositoryNotFoundError|40[134] Client Error|is not a valid model identifier listed on"
        r"|LocalEntryNotFoundError"
        r"|OfflineModeIsEnabled|outgoing traffic has been disabled",
        "hub",
        "the model hub did not give the files: {line}",
        "check the name and the token, or use a local path",
    ),
)

_MEMORY = (
    _rule(
        r"ibv_reg_mr failed|RLIMIT_MEMLOCK|\bmemlock\b",
        "host-memory",
        "memory can't be locked: {line}",
        "LimitMEMLOCK=infinity in the unit (--ulimit memlock=-1 for a container)",
    ),
    _rule(
        r"Free memory on device .* is less than desired GPU memory utilization",
        "gpu-memory",
        "the GPU was not free when the engine started: {line}",
        "another process holds GPU memory, or an earlier one had not given it back",
        transient=True,
    ),
    _rule(
        r"Error in memory profiling|current free memory .* This happens when other processes",
        "gpu-memory",
        "GPU memory was taken or given back by another process during profiling",
        "nothing else may start or stop on these GPUs meanwhile",
        transient=True,
    ),
    _rule(
        r"requested memory for kv",
        "kv-cache",
        "the KV cache does not fit: {line}",
        "ask for less: lower VLLM_CPU_KVCACHE_SPACE or --kv-cache-memory-bytes",
    ),
    _rule(
        r"No available memory for the cache blocks|To serve at least one request with the model"
        r"|larger than the maximum number of tokens that can be stored in (?:the )?KV cache"
        r"|larger than the available KV cache memory",
        "kv-cache",
        "the KV cache does not fit: {line}",
        "lower --max-model-len, or raise --gpu-memory-utilization",
    ),
    _rule(
        r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError|(?:CUDA|HIP) out of memory|cudaErrorMemoryAllocation"
        r"|CUDA (?:driver )?error: out of memory|Cuda failure \d* ?'out of memory'|CUBLAS_STATUS_ALLOC_FAILED",
        "gpu-memory",
        "GPU memory ran out: {line}",
        "lower --gpu-memory-utilization or --max-model-len; a draft model needs room of its own",
    ),
    _rule(
        r"OOM killer|DefaultCPUAllocator: can't allocate memory|(?<!\w)MemoryError\b|std::bad_alloc"
        r"|Cannot allocate memory",
        "host-memory",
        "the host's memory ran out: {line}",
    ),
    _rule(
        r"No space left on device|Disk quota exceeded",
        "host-memory",
        "no space left: {line}",
        "look at /dev/shm and at the cache's disk",
    ),
)

# vLLM's configuration classes that a person knows as a flag.
_CONFIG_FLAGS = {"SpeculativeConfig": "--speculative-config", "CompilationConfig": "--compilation-config"}

_REST = (
    _rule(
        r"[Aa]ddress already in use|EADDRINUSE", "port", "the port is in use already", "another server listens on it"
    ),
    _rule(
        r"Timed out waiting for engine",
        "hang",
        "the API server gave up waiting for its engine",
        "set VLLM_ENGINE_READY_TIMEOUT_S above the time a load takes",
    ),
    _rule(
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|DistBackendError|ProcessGroupNCCL"
        r"|Watchdog caught collective operation timeout|DistNetworkError|TCPStore|Gloo connect|gloo/transport",
        "distributed",
        "the workers could not talk to each other: {line}",
    ),
    _rule(
        r"torch\._(?:dynamo|inductor)\.exc\.|InductorError|BackendCompilerFailed|triton\.compiler\.errors|CompilationError"
        r"|InvalidCxxCompiler|CppCompileError|ninja: build stopped|Error building extension"
        r"|ptxas (?:fatal|error)|PTXASError|failed to compile the model|hash of the compiled graph"
        r"|Failed to find C compiler|[Nn]inja build failed|Could not find nvcc|nvcc fatal|triton\S*\.OutOfResources",
        "compile",
        "compilation failed: {line}",
        "a stale compile cache can do this: try with a fresh VLLM_CACHE_ROOT",
    ),
    _rule(
        r"NVIDIA driver|No (?:CUDA|HIP) GPUs are available|CUDA driver version is insufficient"
        r"|[Dd]river/library version mismatch|no kernel image is available|Failed to infer device type",
        "engine-died",
        "the GPU or its driver can't be used: {line}",
        "compare what nvidia-smi says on the host with what this build of the engine needs",
    ),
    _rule(
        r"illegal memory access|Triton Error \[CUDA\]"
        r"|unspecified launch failure|device-side assert|misaligned address|uncorrectable ECC"
        r"|Segmentation fault|Segfault encountered|Fatal Python error|CUDA error: ",
        "engine-died",
        "the engine crashed on the device: {line}",
    ),
    _rule(
        r"Model architectures? (?P<which>\[[^\]]*\]|\S+) (?:is|are) not supported",
        "bad-value",
        "the engine has no model of the architecture {which}",
        "is it a model, or a draft, that this version can run?",
    ),
    _rule(
        r"contains custom code which must be executed|trust_remote_code=True|--trust-remote-code",
        "bad-value",
        "the model brings code of its own, and the engine may not run it: {line}",
        "--trust-remote-code lets it, if you trust the model",
    ),
    _rule(
        r"[Qq]uantization \w+ .{0,80}not supported for .{0,20}current GPU|[Mm]in(?:imum)? capability: \d+",
        "bad-value",
        "this GPU can't run the quantization: {line}",
    ),
    _rule(r"TypeError: \S*__init__\(\) got an unexpected keyword argument", "bad-value"),
)


def _config_rules(config: str, shown: str) -> tuple[FailureRule, ...]:
    """Return the rules for pydantic's words on one configuration class."""
    start = rf"validation errors? for {config}\n+"
    key = r"(?P<key>[A-Za-z_][\w.-]*)\n\s+"
    return (
        _rule(start + key + r"Unexpected keyword argument", "bad-value", f"{shown} has no key {{key}} in this version"),
        _rule(
            start + key + r"Input should be (?P<allowed>[^\[\n]*)\[type=literal_error, input_value=(?P<given>'[^']*')",
            "bad-value",
            f"{shown} refuses {{key}}: {{given}} is none of {{allowed}}",
        ),
        _rule(start + key + r"(?P<why>[^\[\n]*)", "bad-value", f"{shown} refuses {{key}}: {{why}}"),
        _rule(start + r"\s*(?:Value error, )?(?P<why>[^\[\n]*)", "bad-value", f"{shown}: {{why}}"),
    )


_VALUES = (
    *(rule for config, flag in _CONFIG_FLAGS.items() for rule in _config_rules(config, flag)),
    *_config_rules(r"(?P<config>\w+)", "{config}"),
)

_DIED = (
    _rule(
        r"(?P<who>Worker proc \S+|Engine core proc \S+) died unexpectedly \(exit code: -9\)",
        "engine-died",
        "{who} was killed (signal 9)",
        "the kernel's OOM killer or an operator did it",
    ),
    _rule(
        r"(?P<who>Worker proc \S+|Engine core proc \S+) died unexpectedly \(exit code: None\)",
        "engine-died",
        "{who} died without a word",
        "the kernel's OOM killer or an operator may have ended it: see the kernel's log",
    ),
    _rule(r"(?P<who>Worker proc \S+|Engine core proc \S+) died unexpectedly", "engine-died", "{line}"),
    _rule(
        r"Failed core proc\(s\): \{'(?P<who>[^']+)': -9\b",
        "engine-died",
        "{who} was killed (signal 9)",
        "the kernel's OOM killer or an operator did it",
    ),
    _rule(
        r"The actor died unexpectedly|RayActorError|ActorDiedError",
        "engine-died",
        "a Ray worker ended without a word",
        "see the kernel's log and Ray's own logs of that machine",
    ),
    _rule(
        r"engine core exited unexpectedly|EngineDeadError|LLMEngine is already dead"
        r"|[Ee]ngine (?:core )?initialization failed",
        "engine-died",
        "the engine's own process ended without a word",
        "the kernel's OOM killer or an operator may have ended it: see the kernel's log",
    ),
)

_NATIVE_CPU = (_rule(r"terminate called after|Aborted \(core dumped\)", "engine-died", "the engine aborted: {line}"),)

# What Python, CUDA and the libraries say under any server.
COMMON_FAILURES: tuple[FailureRule, ...] = (*_USAGE, *_HUB, *_MEMORY, *_FILES, *_REST, *_VALUES, *_NATIVE_CPU)
FAILURES: tuple[FailureRule, ...] = (*COMMON_FAILURES, *_DIED)
