// Package kubelet lets Kubernetes' kubelet run where there is nothing to run
// containers with. Start serves a container runtime that says of every sandbox
// and container that it runs, and runs the kubelet with it: its work on volumes
// is what is looked at. End ends it and takes away what it has left on the host:
// mounts, directories, and what it has set in the kernel.
package kubelet
