// Package kubelet lets Kubernetes' kubelet run where there is nothing to run
// containers with. Start serves a container runtime that reports every sandbox and
// container as running, and runs the kubelet with it: only its work on volumes is tested.
// End ends it and removes what it has left on the host: mounts, directories, and its
// settings of the kernel.
package kubelet
