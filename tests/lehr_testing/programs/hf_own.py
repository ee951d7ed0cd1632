"""A script with transformers' Trainer as its users write it: epochs, W&B, and nothing of Lehr."""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(64, (16,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--resume_from_checkpoint", default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **shape, **heads))
    arguments = TrainingArguments(
        output_dir="out",
        run_name="tiny",
        learning_rate=args.learning_rate,
        num_train_epochs=2,
        logging_steps=1,
        eval_strategy="epoch",
        save_steps=2,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="wandb",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Tokens(12), eval_dataset=Tokens(4))
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    main()
