"""A script with the calls of transformers' run_clm.py, in its order; it knows nothing of Lehr.

All arguments are those of its own dataclass and of TrainingArguments, by HfArgumentParser; W&B is
asked for by --report_to. It reads the text of --train_file below the current folder, saves
out/checkpoint-N, and at the end a second copy of the model in out itself.
"""

from dataclasses import dataclass

import torch
from transformers import (
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)


@dataclass
class DataTrainingArguments:
    train_file: str
    block_size: int = 16


class Tokens(torch.utils.data.Dataset):
    def __init__(self, text: bytes, length: int) -> None:
        self.blocks = torch.tensor(list(text))[: len(text) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.blocks[index], "labels": self.blocks[index]}


def main() -> None:
    parser = HfArgumentParser((DataTrainingArguments, TrainingArguments))
    data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    torch.set_num_threads(1)
    with open(data_args.train_file, "rb") as file:
        text = file.read()
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, **shape, **heads))
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Tokens(text[:192], data_args.block_size) if training_args.do_train else None,
        eval_dataset=Tokens(text[192:256], data_args.block_size),
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", train_result.metrics)
        trainer.save_metrics("train", train_result.metrics)
        trainer.save_state()


if __name__ == "__main__":
    main()
