"""A script for several GPUs in which every rank logs and declares checkpoints, as many do."""

import argparse
import os
import time

import torch
import torch.distributed as dist

import lehr_log


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_iters", type=int, default=12)
    parser.add_argument("--pause_s", type=float, default=0.0)
    parser.add_argument("--fail_rank", type=int, default=-1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weight, start = torch.ones(1, dtype=torch.float64), 0
    if lehr_log.resume_from is not None:
        weight, start = torch.load(lehr_log.resume_from), lehr_log.resume_step
    for step in range(start + 1, args.max_iters + 1):
        gradient = weight * (rank + 1) * 0.01
        dist.all_reduce(gradient)
        weight -= gradient
        lehr_log.log({"train/loss": weight.item(), "ranks": dist.get_world_size()}, step=step)
        if rank == args.fail_rank and step == 3:
            raise SystemExit("rank fails on purpose")
        # Ranks hear of a stop at different moments, so they agree on it.
        stop = torch.tensor(float(lehr_log.should_stop()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if step % 2 == 0 or stop:
            if rank == 0:
                torch.save(weight, "state.new")
                os.replace("state.new", "state.pt")
            dist.barrier()
            lehr_log.checkpoint("state.pt", step=step)
        if stop:
            break
        time.sleep(args.pause_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
