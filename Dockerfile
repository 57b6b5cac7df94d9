# One image for two uses. `docker run` alone starts private PostgreSQL, Redis and RabbitMQ inside the container, with
# their data in the volume /data. With DATABASE_URL, REDIS_URL and AMQP_URL set, it is the production server.

FROM rust:1.95-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends nodejs npm libssl-dev pkg-config \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add wasm32-unknown-unknown
WORKDIR /src
# The npm packages change rarely, so their layer stays cached when the code changes.
COPY style/package.json style/package-lock.json style/.npmrc style/
RUN cd style && npm ci --no-audit --no-fund
COPY . .
ENV SQLX_OFFLINE=true
RUN cargo xtask front --release
RUN cargo build --locked --release --package milvaion-server --package milvaion-builtin

FROM debian:12-slim
# The Debian package would create a database cluster on installation. Milvaion creates its own in /data at first start.
RUN mkdir -p /etc/postgresql-common \
    && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
    && apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 postgresql rabbitmq-server redis-server tini tzdata \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --home-dir /data --shell /usr/sbin/nologin milvaion \
    && install -d -o milvaion -g milvaion -m 0700 /data
COPY --from=build /src/target/release/milvaion /src/target/release/milvaion-worker /usr/local/bin/
COPY --from=build /src/target/site /usr/share/milvaion/site
USER milvaion
WORKDIR /data
VOLUME /data
ENV HOST=0.0.0.0 \
    PORT=8080 \
    SITE_ROOT=/usr/share/milvaion/site
EXPOSE 8080
# The worker gets its grace of 20 seconds and 15 more, then the server 6 and the services 9: give `docker stop` more than its
# default of ten (`--time 60`).
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/$PORT && printf 'GET /health/ready HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
# tini is process 1, a role that the server is not written for: it reaps the services' orphans and forwards signals.
ENTRYPOINT ["tini", "--", "milvaion"]
CMD ["run", "--data", "/data", "--with-worker", "/usr/local/bin/milvaion-worker"]
