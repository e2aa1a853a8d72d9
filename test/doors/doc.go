// Package doors tests doors with the programs that they are for: dockerd and podman, which are killed, stopped and
// started beside volplane's own programs.
package doors
