"""Train a small GPT on the bytes of a text file: one script, in the shape of nanoGPT's train.py.

On one device:
    $ python nano.py --batch_size=32 --wandb_log=True

On 4 GPUs of one machine:
    $ torchrun --standalone --nproc_per_node=4 nano.py

To go on from the last checkpoint:
    $ python nano.py --init_from=resume
"""

import argparse
import math
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() == "true"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    # Files and logs.
    add("--out_dir", default="out", help="folder of the checkpoint")
    add("--data", default="input.txt", help="text to train on, beside this script")
    add("--eval_interval", type=int, default=20)
    add("--eval_iters", type=int, default=2, help="batches of an evaluation")
    add("--log_interval", type=int, default=1)
    add("--eval_only", type=flag, default=False, help="end after the first evaluation")
    add("--always_save_checkpoint", type=flag, default=True, help="save although val loss rose")
    add("--init_from", default="scratch", choices=["scratch", "resume"])
    add("--wandb_log", type=flag, default=False)
    add("--wandb_project", default="nano")
    add("--wandb_run_name", default="nano-gpt")
    # Batches.
    add("--gradient_accumulation_steps", type=int, default=2, help="micro steps of all ranks")
    add("--batch_size", type=int, default=8, help="sequences of a micro step")
    add("--block_size", type=int, default=16)
    # Model.
    add("--n_layer", type=int, default=2)
    add("--n_head", type=int, default=2)
    add("--n_embd", type=int, default=32)
    add("--dropout", type=float, default=0.0)
    add("--bias", type=flag, default=False, help="biases in linears and norms")
    # AdamW.
    add("--learning_rate", type=float, default=1e-2)
    add("--max_iters", type=int, default=200)
    add("--weight_decay", type=float, default=0.1)
    add("--beta1", type=float, default=0.9)
    add("--beta2", type=float, default=0.95)
    add("--grad_clip", type=float, default=1.0, help="0: none")
    # Schedule.
    add("--decay_lr", type=flag, default=True)
    add("--warmup_iters", type=int, default=2)
    add("--lr_decay_iters", type=int, default=0, help="0: as max_iters")
    add("--min_lr", type=float, default=0.0, help="0: a tenth of learning_rate")
    # System.
    add("--seed", type=int, default=1337)
    add("--backend", default="", help="of torch.distributed; nccl on GPUs, else gloo")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    add("--compile", type=flag, default=False)
    add("--threads", type=int, default=1, help="of PyTorch, on the CPU")
    add("--pause_s", type=float, default=0.0, help="after each iteration, to watch the curves")
    return parser.parse_args()


class CausalSelfAttention(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        assert args.n_embd % args.n_head == 0
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd, bias=args.bias)
        self.c_proj = nn.Linear(args.n_embd, args.n_embd, bias=args.bias)
        self.resid_dropout = nn.Dropout(args.dropout)
        self.n_head, self.dropout = args.n_head, args.dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.size()
        heads = (B, T, self.n_head, C // self.n_head)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.c_attn(x).split(C, dim=2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))


class MLP(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.c_fc = nn.Linear(args.n_embd, 4 * args.n_embd, bias=args.bias)
        self.c_proj = nn.Linear(4 * args.n_embd, args.n_embd, bias=args.bias)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(args.n_embd, bias=args.bias)
        self.attn = CausalSelfAttention(args)
        self.ln_2 = nn.LayerNorm(args.n_embd, bias=args.bias)
        self.mlp = MLP(args)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, args: argparse.Namespace, vocab_size: int = 256) -> None:
        super().__init__()
        self.args = args
        self.wte = nn.Embedding(vocab_size, args.n_embd)
        self.wpe = nn.Embedding(args.block_size, args.n_embd)
        self.drop = nn.Dropout(args.dropout)
        self.h = nn.ModuleList(Block(args) for _ in range(args.n_layer))
        self.ln_f = nn.LayerNorm(args.n_embd, bias=args.bias)
        self.lm_head = nn.Linear(args.n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        self.apply(self.init_weights)
        for name, p in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * args.n_layer))
        print(f"number of parameters: {self.num_params() / 1e3:.1f}k")

    @staticmethod
    def init_weights(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def num_params(self) -> int:
        return sum(p.numel() for p in self.parameters()) - self.wpe.weight.numel()

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(idx.size(1), device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))

    def configure_optimizers(self) -> torch.optim.AdamW:
        """Decay matrices and embeddings alone, and use the fused kernel on GPUs."""
        args, params = self.args, list(self.parameters())
        groups = [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": args.weight_decay},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
        betas = (args.beta1, args.beta2)
        return torch.optim.AdamW(
            groups, lr=args.learning_rate, betas=betas, fused=params[0].is_cuda
        )

    def estimate_mfu(self, sequences: int, seconds: float) -> float:
        """Estimate the share of an A100's peak in bfloat16 (PaLM, appendix B)."""
        args = self.args
        attention = 12 * args.n_layer * args.n_embd * args.block_size
        flops = (6 * self.num_params() + attention) * args.block_size * sequences
        return flops / seconds / 312e12


def get_batch(
    data: torch.Tensor, args: argparse.Namespace, device: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a batch that depends on the seed alone, so that a resumed training draws the same."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - args.block_size, (args.batch_size,), generator=generator)
    blocks = torch.stack([data[i : i + args.block_size + 1] for i in starts]).long()
    if device.startswith("cuda"):
        blocks = blocks.pin_memory().to(device, non_blocking=True)
    return blocks[:, :-1], blocks[:, 1:]


def get_lr(it: int, args: argparse.Namespace) -> float:
    """Warm up linearly, then decay by a cosine to ``min_lr``."""
    if not args.decay_lr:
        return args.learning_rate
    decay_iters = args.lr_decay_iters or args.max_iters
    min_lr = args.min_lr or args.learning_rate / 10
    if it < args.warmup_iters:
        return args.learning_rate * (it + 1) / (args.warmup_iters + 1)
    if it > decay_iters:
        return min_lr
    ratio = (it - args.warmup_iters) / max(1, decay_iters - args.warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (args.learning_rate - min_lr)


def main() -> None:
    args = parse()
    device, accumulate = args.device, args.gradient_accumulation_steps
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    ddp = world_size > 1
    if ddp:
        dist.init_process_group(args.backend or ("nccl" if device == "cuda" else "gloo"))
        if device == "cuda":
            device = f"cuda:{os.environ['LOCAL_RANK']}"
            torch.cuda.set_device(device)
        assert accumulate % world_size == 0
        accumulate //= world_size
    master_process = rank == 0
    tokens_per_iter = accumulate * world_size * args.batch_size * args.block_size
    if master_process:
        os.makedirs(args.out_dir, exist_ok=True)
        print(f"tokens per iteration will be: {tokens_per_iter:,}")
    torch.manual_seed(args.seed + rank)
    torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = True
    kind = "cuda" if device.startswith("cuda") else "cpu"
    dtype = getattr(torch, args.dtype)
    ctx = nullcontext() if args.dtype == "float32" else torch.autocast(kind, dtype)

    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, args.data), "rb") as file:
        data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
    train_data, val_data = data[: int(0.9 * len(data))], data[int(0.9 * len(data)) :]

    iter_num, best_val_loss = 0, 1e9
    ckpt_path = os.path.join(args.out_dir, "ckpt.pt")
    checkpoint = None
    if args.init_from == "resume":
        print(f"resuming training from {args.out_dir}")
        checkpoint = torch.load(ckpt_path, map_location=device)
        for name in ("n_layer", "n_head", "n_embd", "block_size", "bias"):
            setattr(args, name, checkpoint["config"][name])
    model = raw_model = GPT(args).to(device)
    optimizer = raw_model.configure_optimizers()
    scaler = torch.amp.GradScaler(kind, enabled=args.dtype == "float16")
    if checkpoint is not None:
        raw_model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]
    checkpoint = None  # Free its memory.
    if args.compile:
        model = torch.compile(model)
    if ddp:
        model = DistributedDataParallel(model, [device] if kind == "cuda" else None)

    @torch.no_grad()
    def estimate_loss() -> dict[str, float]:
        out = {}
        raw_model.eval()
        for split, split_data in (("train", train_data), ("val", val_data)):
            losses = torch.zeros(args.eval_iters)
            for k in range(args.eval_iters):
                X, Y = get_batch(split_data, args, device, seed=k)
                with ctx:
                    losses[k] = raw_model(X, Y).item()
            out[split] = losses.mean().item()
        raw_model.train()
        return out

    if args.wandb_log and master_process:
        import wandb

        wandb.init(project=args.wandb_project, name=args.wandb_run_name, config=vars(args))

    t0, local_iter_num, running_mfu = time.time(), 0, -1.0
    while True:
        lr = get_lr(iter_num, args)
        for group in optimizer.param_groups:
            group["lr"] = lr

        # Once in a while: evaluate, and save a checkpoint.
        if iter_num % args.eval_interval == 0 and master_process:
            losses = estimate_loss()
            print(
                f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}"
            )
            if args.wandb_log:
                # The loss of every iteration is logged below, as train/loss.
                wandb.log({"iter": iter_num, "val/loss": losses["val"]})
            if losses["val"] < best_val_loss or args.always_save_checkpoint:
                best_val_loss = min(best_val_loss, losses["val"])
                if iter_num > 0:
                    checkpoint = {
                        "model": raw_model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "scaler": scaler.state_dict(),
                        "iter_num": iter_num,
                        "best_val_loss": best_val_loss,
                        "config": vars(args),
                    }
                    print(f"saving checkpoint to {args.out_dir}")
                    torch.save(checkpoint, ckpt_path)
        if iter_num == 0 and args.eval_only:
            break

        # Forward and backward, with gradients accumulated over micro steps.
        mean_loss = 0.0
        for micro_step in range(accumulate):
            if ddp:
                model.require_backward_grad_sync = micro_step == accumulate - 1
            part = micro_step * world_size + rank
            seed = (args.seed * 1_000_003 + iter_num) * 1_009 + part
            X, Y = get_batch(train_data, args, device, seed)
            with ctx:
                loss = model(X, Y) / accumulate
            scaler.scale(loss).backward()
            mean_loss += loss.detach()
        if args.grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

        t1 = time.time()
        dt, t0 = t1 - t0, t1
        if iter_num % args.log_interval == 0 and master_process:
            lossf = float(mean_loss)
            if local_iter_num >= 5:  # Let the loop settle first.
                mfu = raw_model.estimate_mfu(args.batch_size * accumulate, dt)
                running_mfu = mfu if running_mfu == -1.0 else 0.9 * running_mfu + 0.1 * mfu
            print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms", flush=True)
            if args.wandb_log:
                values = {"train/loss": lossf, "lr": lr, "mfu": running_mfu * 100}
                wandb.log({"iter": iter_num, **values})
        time.sleep(args.pause_s)
        iter_num += 1
        local_iter_num += 1
        if iter_num > args.max_iters:
            break

    if args.wandb_log and master_process:
        wandb.finish()
    if ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
