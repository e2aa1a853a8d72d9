// Package doors tests doors with the programs that use them: dockerd and podman, which are killed, stopped and started
// beside volplane's own programs.
package doors
