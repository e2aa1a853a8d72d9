// Package kubelet runs Kubernetes' kubelet on hosts without a container runtime. Start serves a container runtime that
// reports every sandbox and container as running, and runs the kubelet with it: only its work on volumes is tested. End
// ends it and removes what it has left on the host: mounts, directories, and its settings of the kernel.
package kubelet
