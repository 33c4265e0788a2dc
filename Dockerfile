# The library with its examples; a container trains the demo.
#
#   docker build -t gigl_loader --build-arg TORCH_INDEX=INDEX .    # INDEX: that of torch's CPU wheels
#   docker build -t gigl_loader .                                  # pip's own: CUDA on x86-64
#   docker run gigl_loader
#
# torch's page "Get started" names the index of each build; `docker run --gpus all` lets a CUDA build
# see its devices. The library needs no --shm-size: its shared memory is anonymous files.
# Without a container engine, .ci/image.py does the same steps in a clean folder.
FROM python:3.11-slim
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
ENV NUMBA_CACHE_DIR=/opt/numba
ENV OMP_NUM_THREADS=1
WORKDIR /opt/gigl_loader
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
COPY . .
# the versions that are tested, but for torch, which is there
RUN grep -v '^torch==' .ci/constraints.txt > /opt/constraints.txt \
 && pip install --no-cache-dir -c /opt/constraints.txt '.[examples,metrics]'
# Kernels are compiled here, for this kind of processor; on another kind they are compiled again.
# Numba unpickles them: whoever may write to their folder runs code as all who read it. It uses a
# folder that it may write to alone, so another user than the image's gets a copy of its own.
RUN python examples/train_nodes.py --epochs 1 --figure /opt/curve.png && chmod -R a+rX,go-w /opt/numba
ENTRYPOINT ["sh", "-ec", "test -w /opt/numba || { NUMBA_CACHE_DIR=$(mktemp -d); cp -r /opt/numba/. $NUMBA_CACHE_DIR; }; exec \"$@\"", "start"]
CMD ["torchrun", "--standalone", "--nproc-per-node=2", "examples/train_nodes.py"]
