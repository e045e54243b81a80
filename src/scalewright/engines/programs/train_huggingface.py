"""Train with Hugging Face's Trainer: data parallel, or FSDP on GPUs, on the samples of the run's file.

    python train_huggingface.py --config engine/engine.json

The Trainer prints no time of a step: a callback adds it to the lines that it prints.
"""

from __future__ import annotations

from typing import Any

import torch
from engine_setup import TokenWindows, hugging_face_model, leave, read_config, say
from trainer_parts import StepTimes, end_group, last_checkpoint, training_arguments
from transformers import Trainer, TrainingArguments


class SampleSet(torch.utils.data.Dataset):
    """The samples of all steps, in their order."""

    def __init__(self, samples: TokenWindows, num_steps: int) -> None:
        self._samples, self._num = samples, num_steps * samples.gbs

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        # Models of the library predict the next token of `labels` themselves.
        window = torch.from_numpy(self._samples.sample(index))
        return {"input_ids": window[:-1], "next_ids": window[1:]}


class OrderedTrainer(Trainer):
    """Takes samples in order, and scores every token of a window, the last as well."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(
        self, model: Any, inputs: dict[str, torch.Tensor], return_outputs: bool = False, **_: Any
    ) -> Any:  # fmt: skip
        outputs = model(input_ids=inputs["input_ids"], use_cache=False)
        scores, targets = outputs.logits.flatten(0, 1).float(), inputs["next_ids"].flatten()
        loss = torch.nn.functional.cross_entropy(scores, targets)
        return (loss, outputs) if return_outputs else loss


def main() -> None:
    config = read_config()
    model = hugging_face_model(config)
    arguments = TrainingArguments(**training_arguments(config), remove_unused_columns=False)
    times = StepTimes(config)
    trainer = OrderedTrainer(
        model=model, args=arguments, train_dataset=SampleSet(TokenWindows(config), int(config["steps"])),
        callbacks=[times],
    )  # fmt: skip
    trainer.model_accepts_loss_kwargs = False  # the mean over a micro-batch, averaged over micro-batches
    trainer.train(resume_from_checkpoint=last_checkpoint(config))
    end_group()
    times.end(trainer.state)
    say("training finished")


if __name__ == "__main__":
    main()
    leave()
