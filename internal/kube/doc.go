// Package kube accesses the Kubernetes API: cached objects, restricted clients, events, and the
// RBAC roles that follow from the rights a controller declares.
//
// Life cycle: a process has one set of Caches, with at most one Cache for each kind. Each component asks for the kinds
// that it reads and registers handlers with Watch; then Caches.Start starts a client-go reflector for each cache.
// Caches are built for very many objects: they keep only the fields that components read, and share equal parts of
// different objects. A component writes through a client that refuses every request that the component has not
// declared. A node agent has a set of its own: it borrows claims and volumes from the controllers of its process, or
// reads them by name.
package kube
