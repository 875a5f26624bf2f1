# Two images: `docker build --target router -t tandem-router:0.1.0 .` and `docker build --target shim -t tandem-shim:0.1.0 .`
# The shim's with vLLM beside it: --build-arg VLLM=0.33.0 (0.32.0 for `tandem shim --engine vllm`). For a laptop, without CUDA
# and EFA: --build-arg SHIM_BASE=python-base, and --build-arg TORCH_INDEX_URL=... for an index of CPU builds of torch.
ARG PYTHON_IMAGE=python:3.12.11-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:12.8.1-runtime-ubuntu24.04
ARG SHIM_BASE=cuda-base

FROM ${PYTHON_IMAGE} AS python-base

FROM python-base AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY router router
COPY engine_shim engine_shim
RUN pip wheel --quiet --no-cache-dir --no-deps --wheel-dir /dist .

FROM python-base AS router-environment
COPY --from=wheel /dist /dist
COPY constraints.txt /dist/
COPY deploy/image/install_router.sh /dist/
RUN sh /dist/install_router.sh /opt/tandem /dist/tandem_router-*.whl /dist/constraints.txt

FROM python-base AS router
COPY --from=router-environment /opt/tandem /opt/tandem
ENV PATH=/opt/tandem/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Nothing is written but to /tmp: the root file system may be read-only.
USER 65532:65532
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["tandem"]
CMD ["router", "--help"]

# libfabric with the EFA provider, where NIXL's LIBFABRIC plugin finds it; UCX comes with NIXL's wheel.
FROM ${CUDA_IMAGE} AS cuda-base
ARG EFA_INSTALLER=1.47.0
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3003,DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates curl gcc g++ libc6-dev libhwloc15 python3 python3-dev python3-venv \
    && mkdir /efa \
    && curl --fail --silent --show-error --location --retry 3 \
        "https://efa-installer.amazonaws.com/aws-efa-installer-${EFA_INSTALLER}.tar.gz" | tar -xz -C /efa --strip-components=1 \
    && (cd /efa && ./efa_installer.sh --yes --minimal --skip-kmod --skip-limit-conf) \
    && rm -rf /efa /var/lib/apt/lists/*
ENV LD_LIBRARY_PATH=/opt/amazon/efa/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64:/usr/local/cuda/lib64

FROM ${SHIM_BASE} AS shim
ARG VLLM=
ARG TORCH=2.13.0
ARG TORCH_INDEX_URL=
COPY --from=wheel /dist /dist
COPY constraints.txt /dist/
COPY deploy/image/install_shim.sh /dist/
RUN sh /dist/install_shim.sh /opt/tandem /dist/tandem_router-*.whl /dist/constraints.txt "${VLLM}" "${TORCH}" "${TORCH_INDEX_URL}" \
    && rm -r /dist
ENV PATH=/opt/tandem/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The chart asks for root where EFA needs locked memory, and for nobody else.
USER 65532:65532
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["tandem"]
CMD ["shim", "--help"]
