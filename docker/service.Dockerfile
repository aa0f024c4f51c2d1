# The API, its dashboard and the reaper: no torch, no model code.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
COPY . /src
RUN python -m venv /opt/draftmill \
    && /opt/draftmill/bin/pip install --no-cache-dir '/src[service]' \
    # A read-only root file system keeps no bytecode: it is compiled here, once.
    && python -m compileall -q -j 0 /opt/draftmill/lib

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="draftmill-service" \
      org.opencontainers.image.description="API, dashboard and reaper of Draftmill" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/draftmill /opt/draftmill
RUN useradd --system --uid 10001 --home-dir /data draftmill \
    && install --directory --owner=draftmill --group=draftmill /data
ENV PATH=/opt/draftmill/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DRAFTMILL_DATA_DIR=/data \
    DRAFTMILL_HOST=0.0.0.0 \
    DRAFTMILL_PORT=8642
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8642
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"DRAFTMILL_PORT\"]}/healthz', timeout=2)"]
ENTRYPOINT ["draftmill-service"]
CMD ["run"]
