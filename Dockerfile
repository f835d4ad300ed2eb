# Configured by environment alone, for example:
#   docker run -p 6379:6379 -e EXPIREMEMBER_UPSTREAM=redis://redis:6379 expiremember-proxy
# A password for the proxy itself comes from a mounted secret: -e EXPIREMEMBER_UPSTREAM_PASSWORD_FILE=/run/secrets/redis
# It listens on all addresses of the container: give the server behind it a password (the log warns where it has none).
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
RUN python -m venv /opt/expiremember-proxy
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
RUN /opt/expiremember-proxy/bin/pip install --no-cache-dir .

FROM ${BASE_IMAGE}
COPY --from=build /opt/expiremember-proxy /opt/expiremember-proxy
ENV PATH=/opt/expiremember-proxy/bin:$PATH \
    EXPIREMEMBER_LISTEN=0.0.0.0:6379 \
    EXPIREMEMBER_LOG_FORMAT=json
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 6379
ENTRYPOINT ["expiremember-proxy"]
