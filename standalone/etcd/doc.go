// Package etcd runs the single etcd member of a standalone control plane in this
// process. Clients reach it through a unix socket that only its owner may open; it
// has no network listener.
package etcd
