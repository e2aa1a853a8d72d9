// Package etcd runs the one etcd member that a standalone control plane keeps
// its objects in: in this process, reached over a unix socket that only its
// owner may open, with no network listener at all.
package etcd
