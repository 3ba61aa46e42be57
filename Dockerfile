# The reknit command as an image. Built in two stages, so that pip and its cache stay behind.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY reknit ./reknit
COPY pipeline ./pipeline
COPY topics ./topics
COPY deploy/version.py ./deploy/version.py
# An image is built without the repository, so the version is told: --build-arg BUILD_VERSION=$(reknit --version)
ARG BUILD_VERSION=
RUN python -m venv /opt/reknit && /opt/reknit/bin/pip install --no-cache-dir '.[disk,objects]'

FROM python:3.12-slim
# A user of its own, who owns nothing but the directory for local state.
RUN useradd --system --uid 10001 --user-group --no-create-home reknit \
    && install -d -o reknit -g reknit /var/lib/reknit
COPY --from=build /opt/reknit /opt/reknit
ENV PATH=/opt/reknit/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /var/lib/reknit
ENTRYPOINT ["reknit"]
CMD ["--help"]
