# vision-attn with CUDA, for one machine or many: docs/scale.md shows how to build and run it.
FROM python:3.13-slim

# Versions known to work together; the torch on PyPI for Linux is the one with CUDA.
COPY . /opt/vision-attn
RUN pip install --no-cache-dir --constraint /opt/vision-attn/constraints.txt "/opt/vision-attn[cuda,hub,scale]"

# Run folders, caches and data are where the container is started.
ENV VISION_ATTN_DATA=/work/data
WORKDIR /work
ENTRYPOINT ["vision-attn"]
