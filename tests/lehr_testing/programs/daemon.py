"""A script that leaves a process behind: in a session of its own, and no child of the script."""

import os
import time

import lehr_log

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(1)
    os._exit(0)
lehr_log.log({"loss": 1.0}, step=1)
