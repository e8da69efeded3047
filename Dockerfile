# Builds the one binary and puts it, stripped, into an image without a shell or a package manager. It runs as user 65532 and
# writes to /data only, and to /tmp where SQL effects connect to PostgreSQL: the root may be read-only (docker run --read-only --tmpfs /tmp).
#   docker build -t saga-runner .
#   docker buildx build --platform linux/amd64,linux/arm64 -t registry.example.com/saga-runner --push .
# The program is compiled on the platform of the machine for that of the image (BuildKit sets both), so that no emulator compiles it.
FROM --platform=$BUILDPLATFORM rust:1-bookworm AS build
ARG TARGETARCH
RUN cross=$([ "$TARGETARCH" = "$(dpkg --print-architecture)" ] || echo "crossbuild-essential-$TARGETARCH libc6-dev-$TARGETARCH-cross") \
 && apt-get update \
 && apt-get install -y --no-install-recommends libclang-dev cmake $cross \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock rust-toolchain.toml ./
COPY benches benches
COPY crates crates
COPY src src
COPY docs/errors docs/errors
COPY scripts/cross-build.sh scripts/
# The linker strips the program.
RUN program=$(CARGO_PROFILE_RELEASE_STRIP=symbols scripts/cross-build.sh "$TARGETARCH") \
 && install -D "$program" /out/saga-runner \
 && install -d /out/data

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /out/saga-runner /saga-runner
# A named volume takes over the owner of the folder that it is mounted on.
COPY --from=build --chown=65532:65532 /out/data /data
COPY sagas /etc/saga-runner/sagas
COPY effects /etc/saga-runner/effects
COPY config /etc/saga-runner/config
USER 65532:65532
# Lies over data_dir of the manifest, whichever one is mounted: nothing else can be written to.
ENV SAGA_RUNNER_DATA_DIR=/data
VOLUME /data
# Reached from outside of the container only with http.listen, http.admin_listen and http.authentication in the manifest, or with
# their variables (SR0412): docs/deploying.md has the command.
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["/saga-runner"]
CMD ["run", "--config", "/etc/saga-runner/config/saga-runner.yaml"]
