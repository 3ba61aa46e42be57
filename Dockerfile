# The reknit command as an image. Built in two stages, so that pip and its cache stay behind; what is installed is
# locked by version and digest (deploy/image/lock.py).
FROM python:3.12.12-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY deploy/image/build-requirements.txt deploy/image/requirements.txt ./deploy/image/
RUN pip install --require-hashes -r deploy/image/build-requirements.txt \
    && python -m venv --without-pip /opt/reknit \
    && pip --python /opt/reknit install --require-hashes -r deploy/image/requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY reknit ./reknit
COPY pipeline ./pipeline
COPY topics ./topics
COPY deploy/version.py deploy/sbom_hook.py ./deploy/
# An image is built without the repository, so its version is an argument: --build-arg BUILD_VERSION=$(reknit --version)
ARG BUILD_VERSION=
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && pip --python /opt/reknit install --no-deps --no-index /wheels/*.whl

FROM python:3.12.12-slim-bookworm
ARG BUILD_VERSION=
LABEL org.opencontainers.image.title="Reknit" \
      org.opencontainers.image.description="The stream pipeline between agents and model providers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${BUILD_VERSION}"
# A user of its own, who owns nothing but the directory for local state.
RUN useradd --system --uid 10001 --user-group --no-create-home reknit \
    && install -d -o reknit -g reknit /var/lib/reknit
COPY --from=build /opt/reknit /opt/reknit
COPY deploy/image/healthcheck.py /opt/reknit/healthcheck.py
ENV PATH=/opt/reknit/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /var/lib/reknit
# Of a worker. Without its site packages Python starts in a few milliseconds.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/reknit/healthcheck.py"]
ENTRYPOINT ["reknit"]
CMD ["--help"]
