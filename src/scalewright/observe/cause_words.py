"""Words by which programs name a cause: one expression for each cause, the most telling ones first."""

from __future__ import annotations

import re

CAUSE_WORDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (cause, re.compile(pattern, re.IGNORECASE))
    for cause, pattern in (
        ("stopped-by-signal",
         r"^stopped by SIG\w+ after a whole step"),
        ("ranks-share-device",
         r"duplicate gpu detected"),
        ("device-out-of-memory",
         r"(cuda|hip|xpu|npu|gpu)[^.]{0,40}out of memory|CUDA_ERROR_OUT_OF_MEMORY|torch\.(cuda\.)?OutOfMemoryError"
         r"|RESOURCE_EXHAUSTED: |hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|OOM when allocating tensor"
         r"|ran out of memory in memory space|ResourceExhaustedError|exceeded hbm capacity"
         r"|UR_RESULT_ERROR_OUT_OF_DEVICE|failed to (CUDA|HIP) [cm]alloc"
         r"|larger than the maximum number of tokens[^.]*KV|no available memory for the cache blocks"),
        ("cgroup-memory-kill",
         r"oom[-_ ]kill event|memory cgroup out of memory|memcg.*oom|OOMKilled|TERM_MEMLIMIT"
         r"|(exceeded|over) [^.]{0,40}(pod )?memory limit|mem \d+\w+ exceeded limit"),
        ("host-out-of-memory",
         r"out of memory: kill|\bMemoryError\b|cannot allocate memory|can't allocate memory|std::bad_alloc"
         r"|does not fit in memory|insufficient shared memory|unable to allocate .* for an array"
         r"|killed due to .*running low on memory|out of shared memory|creating shared memory segment"
         r"|failed to extend /dev/shm|exceeds the memory usage threshold|ray\.exceptions\.OutOfMemoryError"
         r"|worker \(pid[^)]*\) is killed by signal: Killed|DefaultCPUAllocator: (can't|not enough)"),
        ("disk-full",
         r"no space left on device|\bENOSPC\b|disk quota exceeded|\bEDQUOT\b|errno 28\b|errno 122\b"
         r"|file system is full|not enough free disk space|PytorchStreamWriter failed writing|file write failed"),
        ("version-mismatch",
         r"undefined symbol|driver version is insufficient|version `?(GLIBC|GLIBCXX|CXXABI)_"
         r"|no kernel image is available|nccl.{0,40}version mismatch|mismatched? nccl version"
         r"|compiled (with|against|using) .{0,80}(but|while|however)|forward compatibility was attempted"
         r"|was built for|dtype size changed|detected cuda version .* mismatches|incompatible with .* version"
         r"|requires .{0,60} but .{0,60}(is|was) (installed|found)|has invalid elf header|invalid device function"
         r"|driver on your system is too old|driver/library version mismatch|hipErrorNoBinaryForGpu"
         r"|not compatible with the current PyTorch|module compiled .{0,30}version|binary incompatibility"
         r"|cannot import name|partially initialized module|requires .{0,40}(>=|==|<=|<|>) ?\d.{0,60}found"),
        ("access-denied",
         r"gated repo|GatedRepoError|access to model .* is restricted|40[13] client error"
         r"|\b40[13]\b.{0,20}forbidden|unauthorized|PermissionError|permission denied"
         r"|invalid (user ?name|token|credentials)|api key not (found|configured)|no api[- ]key"),
        ("wrong-checkpoint",
         r"error\(s\) in loading state_dict|size mismatch for \S+"
         r"|(missing|unexpected) key\(?s?\)? in (the )?(checkpoint )?state_dict"
         r"|checkpoint.{0,60}(world size|parallel size|number of (ranks|gpus|partitions))"
         r"|zero checkpoint.{0,80}(dp|data parallel)"),
        ("unreadable-data",
         r"\bevery checkpoint is damaged\b"),
        ("wrong-configuration-key",
         r"unrecogni[sz]ed argument|no such option|invalid choice|unexpected keyword argument"
         r"|extra (inputs are not|fields not) permitted|ConfigAttributeError|ConfigKeyError|is not in struct"
         r"|could not override|unknown (key|option|argument|field|config)|invalid (key|option)\b"
         r"|the following arguments are required|missing \d+ required|ConfigError\b|MissingMandatoryValue"
         r"|unknown (part|parameter|setting)\b|\bdid you mean\b|is not known: choose|MissingConfigException"
         r"|key .{1,60} is not in|not divisible by|must be divisible|should be divisible|is not a multiple of"
         r"|check batch related parameters|are not used by the HfArgumentParser"),
        ("device-not-visible",
         r"invalid device ordinal|no (cuda|hip|xpu) gpus are available|no (CUDA|ROCm)-capable device is detected"
         r"|found no NVIDIA driver|cuda\.is_available\(\) is False|no GPU (was )?(found|detected)"
         r"|device_count\(\) is 0|(CUDA|HIP)-capable device\(s\) is/are busy|doesn't have (any )?gpus?\b"
         r"|hipErrorNoDevice"),
        ("unreadable-data",
         r"input/output error|\bEIO\b|errno 5\b|stale file handle|\bESTALE\b"
         r"|image (file )?(that )?(is|was) (truncated|cut off)|is not a whole|UnidentifiedImageError"
         r"|cannot identify image file|broken data stream|BadZipFile|PytorchStreamReader failed|UnpicklingError"
         r"|invalid load key|SafetensorError|MetadataIncompleteBuffer|ArrowInvalid|mmap length is greater than"
         r"|checksum (mismatch|does not match)|unexpected end of (file|data)|compressed file ended before|EOFError"
         r"|CRC check failed|JSONDecodeError|consistency check failed"
         r"|(file|archive|shard|checkpoint|image|cache|download)\w*[^./]{0,40}corrupt"
         r"|failed finding central directory"),
        ("missing-file",
         r"FileNotFoundError|no such (file|folder|data ?set|checkpoint|model)\b|holds no (whole )?checkpoint"
         r"|ModuleNotFoundError|command not found|No module named|RepositoryNotFoundError|EntryNotFoundError"
         r"|LocalEntryNotFoundError|404 client error|HFValidationError|does not appear to have a file named"
         r"|can't load (the )?(tokenizer|config|model)|cannot open shared object file"
         r"|is not a local folder and is not a valid model"
         r"|(file|path|director\w+|checkpoint|data ?set)[^.]{0,60}(does not exist|not found)"
         r"|CUDA_HOME environment variable is not set|Ninja is required|unable to find .{0,40}compiler"
         r"|nvcc: not found|couldn't connect to .{0,60}hugg|we couldn't connect to|offline mode is enabled"
         r"|DatasetNotFoundError"),
        ("double-launch",
         r"address already in use|is in use: set MASTER_PORT|\bEADDRINUSE\b"),
        ("device-error",
         r"ERROR_DEVICE_LOST|\bxid\b|uncorrectable ecc|fallen off the bus|illegal memory access"
         r"|unspecified launch failure|device-side assert|misaligned address|memory access fault by gpu"
         r"|HSA_STATUS_ERROR|ECC error|(CUDA|HIP) error: (unknown error|an illegal|hardware|unspecified)"
         r"|hipErrorIllegal|CUDNN_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)|nvlink.{0,40}(error|fatal)|gpu is lost"
         r"|unable to determine the device handle|system not yet initialized|cudaErrorSystemNotReady"
         r"|CUBLAS_STATUS_(EXECUTION_FAILED|NOT_INITIALIZED|INTERNAL_ERROR)|cuInit returned error"
         r"|CUDA unknown error|CUDA_ERROR_UNKNOWN|hipErrorLaunchFailure|GPU core ?dump|device .{0,20}(hang|is hung)"
         r"|hardware exception by gpu|ras: .*poison"),
        ("network-error",
         r"got completion (from|with)|got async event.{0,60}(error|fatal)|ibv_\w+ failed|local catastrophic"
         r"|transport retry|NET/\w+.{0,60}(completed with error|register memory|new endpoint.{0,40}failed)"
         r"|vendor err \d+|cxi\w*:.{0,120}(error|fail)"),
        ("hang",
         r"heartbeat monitor timed out|watchdog got stuck|notify register .{0,60}tim(es|ed) ?out"
         r"|hccl.{0,60}tim(e|ed|es) ?out|timed out waiting \d+ ?ms for|timeout waiting for key"
         r"|wait timeout after \d+|store->get\(.{0,40}timeout|monitoredBarrier"
         r"|ran for \d+ milliseconds before timing out|socket timeout"),
        ("rendezvous-refused",
         r"connection refused|\bECONNREFUSED\b|Rendezvous(Timeout|Connection|Closed)\w*Error"
         r"|client socket has timed out|call to connect.{0,40}(timed? ?out|failed)|connect to .{0,60} failed"
         r"|failed to connect to|could not connect to .{0,60}(master|head|store)|name or service not known"
         r"|temporary failure in name resolution|no route to host|network is unreachable|DistStoreError"
         r"|timed out (waiting for clients|after .* waiting for clients)|no socket interface found"),
        ("loss-nan",
         r"loss (is|was|became) (nan|inf)|(nan|inf)\w* (in|for) (local )?(loss|grad)|found nan|nan loss"
         r"|FloatingPointError|non-?finite|minimum loss scale|grad(ient)?[ _]norm[^.]{0,40}(nan|inf)\b"
         r"|loss scale already at minimum|probability tensor contains either|NaN or Inf found"),
    )
)  # fmt: skip
