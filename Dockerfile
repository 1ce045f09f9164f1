# vision-attn with CUDA, for one machine or many: docs/scale.md shows how to build and run it.
FROM python:3.13-slim

# Triton and torch.compile run a compiler when a model is first used, and slim images have none.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*

# Versions known to work together; the torch on PyPI for Linux is the one with CUDA. It is installed before the code is
# copied, so that Docker does not install it again when the code has changed.
COPY constraints.txt /opt/vision-attn/
RUN pip install --no-cache-dir --constraint /opt/vision-attn/constraints.txt torch torchvision
COPY . /opt/vision-attn
RUN pip install --no-cache-dir --constraint /opt/vision-attn/constraints.txt "/opt/vision-attn[cuda,hub,scale,web]"

# Run folders, caches and data are where the container is started.
ENV VISION_ATTN_DATA=/work/data
WORKDIR /work
ENTRYPOINT ["vision-attn"]
