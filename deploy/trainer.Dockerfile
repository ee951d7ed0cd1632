# What runs on a GPU node: torch, the trainer, and the keeper of its Ray node.
#   docker build -f deploy/trainer.Dockerfile -t lehr-trainer .
# The base image's CUDA must be one that the host's driver supports.
FROM nvidia/cuda:12.8.1-cudnn-runtime-ubuntu22.04

ENV DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
    && apt-get install -y --no-install-recommends software-properties-common gcc g++ \
    && add-apt-repository -y ppa:deadsnakes/ppa \
    && apt-get install -y --no-install-recommends python3.11 python3.11-dev python3.11-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 lehr \
    # A new volume gets the owner of the folder that it is mounted on.
    && install -d -o lehr -g lehr -m 0700 /var/lib/lehr \
    && install -d -o lehr -g lehr /runs /data
RUN python3.11 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONSAFEPATH=1
WORKDIR /opt/lehr
COPY pyproject.toml README.md LICENSE ./
COPY platform platform
COPY trainer trainer
COPY api api
# gcc, g++ and python3.11-dev stay: torch.compile builds Triton's launchers and Inductor's C++ on the
# node. `lehr doctor` checks them.
RUN pip install --no-cache-dir '.[server,trainer,gpu]'

USER lehr
ENV LEHR_HOME=/var/lib/lehr
VOLUME /var/lib/lehr
# Joins the server whose URL is given; the token comes as LEHR_JOIN_TOKEN.
ENTRYPOINT ["lehr", "node", "join", "--foreground"]
