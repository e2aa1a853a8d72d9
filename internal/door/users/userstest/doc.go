// Package userstest has a host for tests of doors, which is an API, a node agent and a kernel with mounts, and plays
// stories on it.
package userstest
