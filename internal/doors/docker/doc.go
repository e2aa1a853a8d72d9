// Package docker is the volume plugin of docker and podman: their volumes are the claims of one namespace.
//
// The protocol is docker's, version 1: eight calls by HTTP over a unix socket. A container that uses a volume is an
// entry in the annotation of a Pod, of which each claim has at most one on this node; the node agent mounts the
// volume for the Pod, and the engine binds that mount into the container. All that must survive is in the API, so
// that the process may be killed at any time. See package decide/volumeusers for who counts as a user.
package docker
