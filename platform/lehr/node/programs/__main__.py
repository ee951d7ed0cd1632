"""``python -m lehr.node.programs ATTEMPT_DIR``: supervise an attempt's program, as one rank."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

from lehr.node.programs.program_dir import ProgramDir, read_program
from lehr.node.programs.saves import versions
from lehr.node.programs.supervisor import Supervisor
from lehr_trainer import process_start
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.contract.records import Finished, Resumed, Started, Warning_
from lehr_trainer.errors import BadCheckpoint, BadConfig, BadData
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.launch import redirect_output


def main() -> int:
    process_start.die_with_parent()
    process_start.hold_gpus()
    attempt_dir = Path(sys.argv[1]).absolute()
    rank = int(os.environ.get("RANK", "0"))
    os.close(redirect_output(layout.rank_log(attempt_dir, rank)))
    note = LaunchNote.model_validate_json((attempt_dir / layout.LAUNCH).read_bytes())
    # Only rank 0 writes the stream.
    events = EventStream(attempt_dir / layout.EVENTS if rank == 0 else None)
    capsule = os.environ.get("LEHR_CODE_FOLDER")
    place = ProgramDir(attempt_dir, Path(capsule) if capsule else None)
    try:
        program = read_program(attempt_dir.parent)
        resumed, changed_data = place.prepare(note, program)
    except (BadCheckpoint, BadConfig, BadData) as error:
        print(f"error: {error}", flush=True)
        events.write(
            Finished(
                time=time.time(), step=0, outcome="failed", cause=error.cause, message=str(error)
            )
        )
        return 1
    events.write(
        Started(
            time=time.time(),
            attempt=note.attempt,
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            tokens_per_step=program.tokens_per_step,
            total_steps=program.total_steps or 0,
            versions=versions(),
            host={
                "hostname": platform.node(),
                "pid": os.getpid(),
                "command": sys.orig_argv,
                "cpus": os.cpu_count(),
                "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
            },
            code=layout.code_digest(),
        )
    )
    for data in changed_data:
        message = f"trainer.data has changed since the submission: {data}"
        events.write(Warning_(time=time.time(), code="data_changed", message=message, step=0))
    if resumed is not None:
        if resumed.changed:
            words = "the checkpoint was saved in another environment"
            print(f"warning: {words}: {', '.join(resumed.changed)}", flush=True)
        events.write(
            Resumed(
                time=time.time(),
                step=resumed.step,
                checkpoint=resumed.checkpoint,
                changed=resumed.changed,
            )
        )
    return Supervisor(place, program, events, note, rank=rank, resumed=resumed).run()


if __name__ == "__main__":
    sys.exit(main())
