"""A script with the course of a Hydra app that logs to TensorBoard: key=value, a folder by the time.

Hydra reads conf/config.yaml beside the script, makes outputs/<day>/<time> and writes its own files
there; the script saves one file for each checkpoint. An unknown key ends it with three lines of
which the last does not name the key.
"""

import os
import sys
import time

import torch
import yaml
from tensorboardX import SummaryWriter

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "conf/config.yaml")) as f:
    cfg = yaml.safe_load(f)
for override in sys.argv[1:]:
    key, val = override.split("=")
    if key not in cfg:
        print(f"Could not override '{key}'.\nKey '{key}' is not in struct\n    full_key: {key}\n")
        sys.exit("Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.")
    cfg[key] = yaml.safe_load(val)
out = time.strftime("outputs/%Y-%m-%d/%H-%M-%S")
os.makedirs(os.path.join(out, ".hydra"))
with open(os.path.join(out, ".hydra/overrides.yaml"), "w") as f:
    yaml.safe_dump(sys.argv[1:], f)
writer = SummaryWriter(out)
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
for step in range(1, cfg["steps"] + 1):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    writer.add_scalar("train/loss", loss.item(), step)
    if step % 2 == 0:
        writer.close()  # torch's flush writes all that waits; that of tensorboardX does not.
        writer = SummaryWriter(out)
        torch.save(model.state_dict(), os.path.join(out, f"step={step}.ckpt"))
        time.sleep(cfg["pause_s"])
writer.close()
