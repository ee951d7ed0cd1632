# The server alone: API, dashboard, queue. No torch, no GPU.
#   docker build -f deploy/server.Dockerfile -t lehr-server .
# Ray demands the same patch version of Python everywhere: keep this the same in both images.
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS build
RUN python -m venv /opt/venv && python -m venv /opt/tools
WORKDIR /src
COPY deploy/server.lock deploy/build.lock ./
RUN /opt/tools/bin/pip install --no-cache-dir --require-hashes --no-deps -r build.lock \
    && /opt/venv/bin/pip install --no-cache-dir --require-hashes --no-deps -r server.lock
COPY pyproject.toml README.md LICENSE ./
COPY platform platform
COPY trainer trainer
COPY api api
RUN /opt/tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/venv/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM python:${PYTHON}
RUN useradd --create-home --uid 1000 lehr \
    && install -d -o lehr -g lehr -m 0700 /var/lib/lehr \
    # A new volume gets the owner of the folder that it is mounted on.
    && install -d -o lehr -g lehr /runs
COPY --from=build /opt/venv /opt/venv

USER lehr
ENV PATH=/opt/venv/bin:$PATH LEHR_HOME=/var/lib/lehr PYTHONSAFEPATH=1
VOLUME /var/lib/lehr
EXPOSE 5347
HEALTHCHECK --interval=15s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import httpx; httpx.get('http://127.0.0.1:5347/api/v1/health').raise_for_status()"]
# Plain HTTP is for the network inside the composition only; see proxy/ for TLS.
CMD ["python", "-P", "-m", "lehr_api", "--home", "/var/lib/lehr", "--host", "0.0.0.0", "--port", "5347", "--insecure"]
