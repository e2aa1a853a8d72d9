// Package hosts tests failures between hosts: node agents in network namespaces of their own are
// disconnected from the control plane and reconnected, while programs on several hosts try to write to a
// volume that only one host may have.
package hosts
