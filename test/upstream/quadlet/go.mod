// Podman's generator of units, which reads Quadlets: distributions with an older podman lack it.
module volplane.dev/volplane/test/upstream/quadlet

go 1.26.0

toolchain go1.27.3

tool github.com/containers/podman/v5/cmd/quadlet

require (
	github.com/containers/podman/v5 v5.8.2 // indirect
	go.podman.io/storage v1.62.0 // indirect
)
