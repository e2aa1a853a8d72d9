// Package plugin is a CSI driver for one host, which really mounts: file systems in memory, and loop devices for block
// volumes. It serves until Close, and announces itself to the node agent whose directory it was given. The agent's
// calls are reported to the test, before and after the work is done; no other step takes time.
package plugin
