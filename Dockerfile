# Retrysafe, and the sample API of examples/compose as another target.
#
#   docker build -t retrysafe .
#   docker build -t legacy-api --target legacy-api .

FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /src
# Dependencies first: they change less often than the code, and their layer is cached.
COPY Cargo.toml Cargo.lock ./
RUN mkdir src benches && echo 'fn main() {}' > src/main.rs && touch src/lib.rs benches/proxy.rs \
    && cargo build --release --locked \
    && rm -r src
COPY src src
RUN touch src/main.rs src/lib.rs && cargo build --release --locked
COPY examples/legacy_api.rs examples/legacy_api.rs
RUN rustc --edition 2024 -O examples/legacy_api.rs -o /legacy-api && mkdir /empty

FROM gcr.io/distroless/cc-debian12:nonroot AS legacy-api
COPY --from=build /legacy-api /legacy-api
USER 65532:65532
EXPOSE 3000
ENTRYPOINT ["/legacy-api"]

FROM gcr.io/distroless/cc-debian12:nonroot AS retrysafe
LABEL org.opencontainers.image.title="retrysafe" \
      org.opencontainers.image.description="A reverse-proxy sidecar that makes any HTTP API safe to retry" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
COPY --from=build /src/target/release/retrysafe /retrysafe
COPY config.toml /etc/retrysafe/config.toml
# The file store of the shipped configuration lies here.
COPY --from=build --chown=65532:65532 /empty /data
WORKDIR /data
USER 65532:65532
ENV RETRYSAFE_CONFIG=/etc/retrysafe/config.toml
EXPOSE 4390 4391
HEALTHCHECK --interval=5s --timeout=4s --start-period=10s --retries=3 CMD ["/retrysafe", "healthcheck"]
ENTRYPOINT ["/retrysafe"]
CMD ["run"]
