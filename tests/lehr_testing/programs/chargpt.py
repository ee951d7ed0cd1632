"""A script with the calls of minGPT's projects/chargpt/chargpt.py, in its order: it only prints.

It imports a package of the project's root, reads input.txt in the current folder, writes its
arguments and config into work_dir, and saves model.pt there in a callback, at iteration 0 first.
Arguments have dots, `--trainer.max_iters=5`; an unknown one fails an assertion.
"""

import json
import os
import sys
from ast import literal_eval

import torch

config = {
    "system": {"work_dir": "./out/chargpt", "seed": 3407},
    "trainer": {"learning_rate": 5e-4, "max_iters": 1001, "save_interval": 500},
}
for arg in sys.argv[1:]:
    key, val = arg.removeprefix("--").split("=")
    group, leaf = key.split(".")
    assert leaf in config[group], f"{key} is not an attribute that exists in the config"
    config[group][leaf] = literal_eval(val)
work_dir = config["system"]["work_dir"]
os.makedirs(work_dir, exist_ok=True)
with open(os.path.join(work_dir, "args.txt"), "w") as f:
    f.write(" ".join(sys.argv))
with open(os.path.join(work_dir, "config.json"), "w") as f:
    f.write(json.dumps(config, indent=4))
torch.manual_seed(config["system"]["seed"])
text = open("input.txt").read()  # noqa: SIM115 - as there
print(f"data has {len(text)} characters, {len(set(text))} unique.")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=config["trainer"]["learning_rate"])
iter_num = 0
while iter_num < config["trainer"]["max_iters"]:
    loss = model(torch.ones(1, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0:
        print(f"iter_dt 1.00ms; iter {iter_num}: train loss {loss.item():.5f}")
    if iter_num % config["trainer"]["save_interval"] == 0:
        print("saving model")
        torch.save(model.state_dict(), os.path.join(work_dir, "model.pt"))
    iter_num += 1
