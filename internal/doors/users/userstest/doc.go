// Package userstest has a host for stories of doors: an API, a node agent, and a kernel with mounts.
package userstest
