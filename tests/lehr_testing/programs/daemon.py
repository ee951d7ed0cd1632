"""A script that leaves processes behind: in sessions of their own, and no children of the script.

One of them has also cleared its environment.
"""

import os
import sys
import time

import lehr_log

SLEEP = "import time; time.sleep(3600)"


def leave(name, clear):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open(name, "w") as file:
                file.write(str(os.getpid()))
            if clear:
                os.execve(sys.executable, [sys.executable, "-c", SLEEP], {})
            time.sleep(3600)
        os._exit(0)
    while not os.path.exists(name) or not os.path.getsize(name):
        time.sleep(0.01)


leave("marked.pid", clear=False)
leave("cleared.pid", clear=True)
lehr_log.log({"loss": 1.0}, step=1)
