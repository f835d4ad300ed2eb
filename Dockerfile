# Configured by environment alone, for example:
#   docker build -t expiremember-proxy .
#   docker run --read-only --cap-drop ALL --security-opt no-new-privileges -p 127.0.0.1:6379:6379 \
#     -e EXPIREMEMBER_UPSTREAM=redis://redis:6379 expiremember-proxy
# A password for the proxy itself comes from a mounted file: -e EXPIREMEMBER_UPSTREAM_PASSWORD_FILE=/run/secrets/redis
# It listens on all addresses of the container: give the server behind it a password (the log warns where it has none).
ARG BASE_IMAGE=python:3.13-slim

FROM ${BASE_IMAGE} AS build
# For a package index of one's own: --build-arg PIP_INDEX_URL. They end with this stage: the image does not contain them.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
RUN python3 -m venv /opt/expiremember-proxy
# What the proxy needs comes first: it changes less often than the proxy.
COPY pyproject.toml ./
RUN python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        >requirements.txt \
    && /opt/expiremember-proxy/bin/pip install --no-cache-dir -r requirements.txt
COPY README.md LICENSE ./
COPY proxy proxy
RUN /opt/expiremember-proxy/bin/pip install --no-cache-dir . \
    && /opt/expiremember-proxy/bin/pip uninstall --yes pip
COPY tools/image_root.py tools/
RUN python3 tools/image_root.py /opt/expiremember-proxy /image

# Python, the proxy and what they load. There is no shell in it: expiremember-proxy check is what tells how it is.
FROM scratch
LABEL org.opencontainers.image.title="expiremember-proxy" \
      org.opencontainers.image.description="A sidecar for Redis and Valkey: EXPIREMEMBER, as in KeyDB" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /image /
# Running requests get 8 seconds after SIGTERM: `docker stop` kills after 10.
ENV PATH=/opt/expiremember-proxy/bin:/usr/local/bin:/usr/bin \
    EXPIREMEMBER_LISTEN=0.0.0.0:6379 \
    EXPIREMEMBER_LOG_FORMAT=json \
    EXPIREMEMBER_SHUTDOWN_TIMEOUT=8
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 6379
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s CMD ["expiremember-proxy", "check", "--probe"]
ENTRYPOINT ["expiremember-proxy"]
