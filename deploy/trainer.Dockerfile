# What runs on a GPU node: torch, the trainer, and the keeper of its Ray node.
#   docker build -f deploy/trainer.Dockerfile -t lehr-trainer .
# torch brings CUDA's libraries along (deploy/trainer.lock names their versions), so the image needs none.
# The host's driver must support that CUDA; NVIDIA's container toolkit brings the driver in.
# Ray demands the same patch version of Python everywhere: keep this the same in both images.
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS build
RUN python -m venv /opt/venv && python -m venv /opt/tools
WORKDIR /src
COPY deploy/trainer.lock deploy/build.lock ./
RUN /opt/tools/bin/pip install --no-cache-dir --require-hashes --no-deps -r build.lock \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r trainer.lock
COPY pyproject.toml README.md LICENSE ./
COPY platform platform
COPY trainer trainer
COPY api api
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/venv/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM python:${PYTHON}
# torch.compile builds Triton's launchers and Inductor's C++ on the node, with Python.h of the base image.
# `lehr doctor` checks them.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 lehr \
    # A new volume gets the owner of the folder that it is mounted on.
    && install -d -o lehr -g lehr -m 0700 /var/lib/lehr \
    && install -d -o lehr -g lehr /runs /data
COPY --from=build /opt/venv /opt/venv

USER lehr
ENV PATH=/opt/venv/bin:$PATH LEHR_HOME=/var/lib/lehr PYTHONSAFEPATH=1
# NVIDIA's container toolkit gives the driver and its libraries to images that ask for them.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME /var/lib/lehr
# Joins the server whose URL is given; the token comes as LEHR_JOIN_TOKEN.
ENTRYPOINT ["lehr", "node", "join", "--foreground"]
