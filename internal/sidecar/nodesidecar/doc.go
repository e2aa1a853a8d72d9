// Package nodesidecar has the programs that run beside a CSI driver on its node and need no API server: the registrar,
// which registers the driver with the kubelet, and the liveness probe, which reports to the kubelet whether the
// driver answers.
//
// Life cycle: Registrar and Liveness run until their context ends; Main runs them for a command line. Nothing here
// knows Kubernetes' API types, whose initialisation takes more memory than all the rest of these programs.
package nodesidecar
