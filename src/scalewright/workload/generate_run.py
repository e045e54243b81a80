"""GenerateRun: everything that decides a run of the generation benchmark, resolved. The same one resumes a run.

Either our engine answers, on ranks that this run starts, or a server that is already running somewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from scalewright.catalog.types import TransformerShape
from scalewright.errors import ConfigError
from scalewright.records.documents import check_schema, document
from scalewright.workload.language_run import check_runs_here, restored_shape, shape_document
from scalewright.workload.layout import Layout
from scalewright.workload.request_plan import RequestPlan
from scalewright.workload.run_options import DeviceKind, check_literals

KIND = "generate-run"
WeightPrecision = Literal["fp32", "bf16", "fp8"]
EngineExecution = Literal["auto", "plain", "kernels", "graphs"]
ServerApi = Literal["auto", "completions", "chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How tokens are drawn. A temperature of 0 takes the most probable one."""

    temperature: float = 1.0
    top_p_frac: float = 1.0
    top_k: int = 0
    """0: any token."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature {self.temperature:g}: give 0 (greedy) or more")
        if not 0.0 < self.top_p_frac <= 1.0:
            raise ConfigError(f"--top-p {self.top_p_frac:g}: give a share above 0, up to 1")
        if self.top_k < 0:
            raise ConfigError(f"--top-k {self.top_k}: give 1 or more, or 0 for any token")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTarget:
    """Our engine: `dp` copies of the model, each split over `tp` ranks."""

    tp: int = 1
    dp: int = 1
    precision: WeightPrecision = "bf16"
    weights: str = ""
    """Folder with a checkpoint of ours or Hugging Face safetensors; empty: random weights by the seed."""
    max_context: int = 0
    """Longest prompt and answer together; 0: as long as the longest request of the plan."""
    cache_size_bytes: int = 0
    """Keys and values of one rank; 0: what all requests need, as far as the device has room."""
    max_running: int = 0
    """Sequences that a step serves; 0: as many as the cache holds."""
    prefill_chunk: int = 0
    """Prompt tokens read in one step; 0: the engine's default."""
    execution: EngineExecution = "auto"
    """plain: PyTorch's operators; kernels: ours; graphs: the same in CUDA graphs; auto: the fastest the device has."""

    def __post_init__(self) -> None:
        check_literals(self, {"precision": WeightPrecision, "execution": EngineExecution})
        for name in ("tp", "dp"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: give 1 or more")
        for name in ("max_context", "cache_size_bytes", "max_running", "prefill_chunk"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: give 1 or more, or 0 for the default")

    @property
    def num_ranks(self) -> int:
        return self.tp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """A server with OpenAI's interface."""

    url: str
    """With or without /v1 at its end."""
    model: str = ""
    """As the server calls it; empty: the first one that it lists."""
    api: ServerApi = "auto"
    key_variable: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; the key itself is never stored."""
    timeout_s: float = 120.0
    """Longest wait for the next piece of an answer."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {self.url!r} is no address: write http://HOST:PORT or https://HOST/v1")
        if parts.username or parts.password:
            raise ConfigError("--url holds a user name or password: put the key into a variable, see --api-key-env")
        if self.api not in get_args(ServerApi):
            raise ConfigError(f"--api {self.api!r}: choose {', '.join(get_args(ServerApi))}")
        if not 0.0 < self.timeout_s < float("inf"):
            raise ConfigError(f"--timeout of {self.timeout_s:g} s: give a time above 0 s")

    @property
    def base(self) -> str:
        """The address to which /v1/... is added."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def is_here(self) -> bool:
        """Whether it runs on this machine: its energy can be read here."""
        return (urlsplit(self.url).hostname or "") in ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRun:
    """One run of the generation benchmark."""

    model_id: str = ""
    """Empty: whatever the server serves."""
    shape: TransformerShape | None = None
    """None where the server's model is not named."""
    target: EngineTarget | ServerTarget
    requests: RequestPlan = field(default_factory=RequestPlan)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    device: DeviceKind = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.target, ServerTarget):
            return
        if self.shape is None:
            raise ConfigError("no model: give --model, or the address of a server with --url")
        check_runs_here(self.model_id, self.shape, Layout(tp=self.target.tp, dp=self.target.dp, gbs=self.target.dp))

    @property
    def num_ranks(self) -> int:
        return self.target.num_ranks if isinstance(self.target, EngineTarget) else 1

    @property
    def precision(self) -> str:
        """Of the engine's weights; of a server's, bf16 is assumed."""
        return self.target.precision if isinstance(self.target, EngineTarget) else "bf16"

    @property
    def vocab(self) -> int | None:
        return None if self.shape is None else self.shape.vocab

    def document(self) -> dict[str, Any]:
        body = asdict(self)
        body["shape"] = None if self.shape is None else shape_document(self.shape)
        kind = "engine" if isinstance(self.target, EngineTarget) else "server"
        body["target"] = {"kind": kind, **asdict(self.target)}
        body["requests"]["num_requests_per_s"] = list(self.requests.num_requests_per_s)
        return document(KIND, body)


def from_document(doc: Mapping[str, Any], *, where: str) -> GenerateRun:
    """The run that `GenerateRun.document` wrote."""
    check_schema(doc.get("schema"), KIND, where=where)
    body = {key: value for key, value in doc.items() if key != "schema"}
    if set(body) != {f.name for f in fields(GenerateRun)}:
        raise ConfigError(f"{where}: has other keys than a {KIND} of this version: choose another --run-dir")
    target = dict(body["target"])
    try:
        is_engine = target.pop("kind") == "engine"
        rates = tuple(body["requests"]["num_requests_per_s"])
        return GenerateRun(
            model_id=body["model_id"],
            shape=None if body["shape"] is None else restored_shape(body["shape"], where=where),
            target=EngineTarget(**target) if is_engine else ServerTarget(**target),
            requests=RequestPlan(**{**body["requests"], "num_requests_per_s": rates}),
            sampling=SamplingSettings(**body["sampling"]),
            device=body["device"],
        )
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{where}: is not a {KIND}: {error}; choose another --run-dir") from error
