"""The Python client, for notebooks, scripts and the command line.

``Client()`` finds the local server and its token, or uses LEHR_SERVER and LEHR_TOKEN. It needs only
the light install; pandas is imported by the methods that return frames.
"""

from lehr.faces.client.client import Client
from lehr.faces.client.comparisons import Comparison
from lehr.faces.client.rollouts import Rollout
from lehr.faces.client.runs import Run
from lehr.faces.client.sweeps import Sweep
from lehr.faces.client.transport import StreamEvent

__all__ = ["Client", "Comparison", "Rollout", "Run", "StreamEvent", "Sweep"]
