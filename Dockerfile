# One image for every service: `docker run drystone service placement`.
FROM python:3.13-slim AS build
WORKDIR /src
COPY requirements.lock requirements-dev.lock ./
# Two environments: what the services need, and what builds the wheel, which stays here.
RUN python -m venv /opt/drystone \
    && /opt/drystone/bin/pip install --no-cache-dir --require-hashes --requirement requirements.lock \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement requirements-dev.lock
COPY pyproject.toml README.md LICENSE ./
COPY libs libs
COPY services services
COPY cli cli
COPY bench bench
COPY tools tools
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/drystone/bin/pip install --no-cache-dir --no-deps /dist/*.whl

FROM python:3.13-slim
COPY --from=build /opt/drystone /opt/drystone
ENV PATH=/opt/drystone/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8080
ENTRYPOINT ["drystone"]
CMD ["--help"]
