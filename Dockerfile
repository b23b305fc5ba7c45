# docker build -t twincluster .                                          CPU
# docker build -t twincluster --build-arg TORCH_BACKEND=cu128 .          NVIDIA GPU; run with --gpus all
# docker run --rm -v "$PWD:/work" twincluster fit photos/ --out runs/photos
FROM python:3.12-slim

ARG TORCH_BACKEND=cpu
RUN pip install --no-cache-dir uv==0.9.10
COPY pyproject.toml README.md LICENSE /source/
COPY src /source/src
RUN uv pip install --system --no-cache --torch-backend "$TORCH_BACKEND" /source \
    && useradd --create-home --uid 1000 user
USER user
WORKDIR /work
ENV TWINCLUSTER_CACHE=/work/.twincluster
ENTRYPOINT ["twincluster"]
CMD ["--help"]
