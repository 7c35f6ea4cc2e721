# docker build --tag tilewright . && apptainer build tilewright.sif docker-daemon:tilewright:latest
# Then, in the folder that `tilewright init` wrote: apptainer exec tilewright.sif snakemake registration qc
FROM python:3.12-slim AS wheels
WORKDIR /src
COPY . .
RUN pip wheel --quiet --no-deps --wheel-dir /wheels ./scheduler-plugin .

FROM python:3.12-slim
COPY --from=wheels /wheels /wheels
RUN pip install --quiet --no-cache-dir --find-links /wheels 'tilewright[czi,nd2,lif]' && rm -r /wheels
# Apptainer mounts the user's home and folder; nothing is written into the image.
ENV MPLBACKEND=Agg
WORKDIR /work
CMD ["tilewright", "--help"]
