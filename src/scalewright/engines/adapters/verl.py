"""verl: GRPO with FSDP for training and vLLM for the answers, as overrides of its own configuration."""

from __future__ import annotations

from scalewright.engines.adapters.pieces import missing, refuse_modes, refuse_splits
from scalewright.engines.types import EngineJob, EngineRequest, refusal

NAME = "verl"
NUM_SAMPLES = 8
"""Answers to each prompt; `--set actor_rollout_ref.rollout.n=16` changes it."""
GPU_SHARE_FRAC = 0.5
"""Share of a device's memory that vLLM may take beside the training state."""


def refuse_what_it_lacks(request: EngineRequest) -> None:
    if request.task != "grpo":
        raise refusal(NAME, f"task {request.task}", "here it reinforces only", "use --task grpo, or --engine trl")
    refuse_splits(NAME, request, "cp")
    refuse_modes(NAME, request, "offload", "lora")
    layout = request.layout
    if layout.zero < 2:
        raise refusal(NAME, f"zero={layout.zero}", "its FSDP shards gradients at least", "use zero=2 or zero=3")
    if layout.recompute not in ("none", "full"):
        raise refusal(
            NAME, f"recompute={layout.recompute}", "it checkpoints whole layers", "use recompute=none or full"
        )
    if request.recipe.name != "bf16":
        raise refusal(NAME, f"precision {request.recipe.name}", "its FSDP trains in bf16", "use --precision bf16")
    if request.device == "cpu":
        raise refusal(NAME, "a run on CPUs", "vLLM and FSDP need devices", "use --engine trl")
    refuse_rollout(NAME, request)
    if request.shape.heads % int(layout.cp):
        raise refusal(NAME, f"cp={layout.cp}", "its sequence parallelism deals heads", "use a divisor of the heads")


def refuse_rollout(name: str, request: EngineRequest) -> None:
    """Generators that vLLM beside a trainer cannot be told."""
    plan = request.rollout
    if plan is None:
        return
    if plan.pp > 1:
        raise refusal(
            name, f"a generator with pp={plan.pp}", "its generator splits matrices only",
            "plan again with --rl ...,rollout_pp=1",
        )  # fmt: skip
    if request.num_gpus % plan.tp:
        raise refusal(
            name, f"a generator with tp={plan.tp} on {request.num_gpus} devices", "its copies have equal numbers",
            "plan with a number of devices that it divides",
        )  # fmt: skip
    if plan.num_prompts % max(int(request.layout.gbs) // plan.num_samples, 1):
        raise refusal(
            name, f"updates of {request.layout.gbs} answers", "an update has whole prompts, a part of the batch",
            f"plan with --global-batch {plan.num_prompts * plan.num_samples}",
        )  # fmt: skip


def overrides(request: EngineRequest) -> dict[str, str]:
    """Keys of its configuration (ppo_trainer.yaml) with their values, in Hydra's words."""
    layout, mode, load = request.layout, request.mode, request.load or "MODEL"
    offload = "true" if mode.is_offload else "false"
    half, plan = max(request.seq_len // 2, 1), request.rollout
    prompt = plan.prompt_len if plan else half
    num_samples = plan.num_samples if plan else NUM_SAMPLES
    batch = plan.num_prompts if plan else int(layout.gbs)
    update = max(int(layout.gbs) // num_samples, 1) if plan else int(layout.gbs)
    return {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": quoted(request.data or "TRAIN.parquet"),
        "data.val_files": quoted(request.data or "TRAIN.parquet"),
        "data.train_batch_size": str(batch),
        "data.max_prompt_length": str(prompt),
        "data.max_response_length": str(plan.longest_len if plan else request.seq_len - half),
        "actor_rollout_ref.model.path": quoted(load),
        "actor_rollout_ref.model.enable_gradient_checkpointing": str(layout.recompute == "full").lower(),
        "actor_rollout_ref.model.lora_rank": str(mode.lora_rank if mode.is_lora else 0),
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.ppo_mini_batch_size": str(update),
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": str(layout.mbs),
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": str(layout.cp),
        "actor_rollout_ref.actor.optim.lr": str(request.optimizer.learning_rate),
        "actor_rollout_ref.actor.fsdp_config.reshard_after_forward": str(layout.zero == 3).lower(),
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload": offload,
        "actor_rollout_ref.actor.use_kl_loss": "true",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": str(layout.mbs),
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": str(num_samples),
        "actor_rollout_ref.rollout.tensor_model_parallel_size": str(plan.tp if plan else 1),
        "actor_rollout_ref.rollout.gpu_memory_utilization": str(GPU_SHARE_FRAC),
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": str(layout.mbs),
        "trainer.nnodes": str(request.num_nodes),
        "trainer.n_gpus_per_node": str(request.num_local_gpus),
        "trainer.total_training_steps": str(request.num_steps),
        "trainer.save_freq": str(request.checkpoint_every or -1),
        "trainer.default_local_dir": quoted(str(request.checkpoint_dir)),
        "trainer.resume_mode": "auto",
        "trainer.logger": '["console"]',
        "trainer.val_before_train": "false",
        **request.settings,
    }


def quoted(text: str) -> str:
    """A text as Hydra's grammar quotes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def render(request: EngineRequest) -> EngineJob:
    words = [f"{key}={value}" for key, value in overrides(request).items()]
    return EngineJob(
        engine="verl",
        files={},
        command=(request.engine_python, "-m", "verl.trainer.main_ppo", *words, *request.extra_args),
        started_by="ray",
        checkpoint_dir=request.checkpoint_dir,
        resume=f"the next attempt loads the newest checkpoint in {request.checkpoint_dir} (trainer.resume_mode=auto)",
        placeholders=missing(request, "load", "text"),
        notes=()
        if request.rollout
        else ("prompts and answers get half of the sequence each: change data.max_prompt_length with --set",),
    )
