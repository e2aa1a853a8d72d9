// Package hosts tests what happens between hosts: node agents in network
// namespaces of their own lose each other and the control plane, and come back,
// while programs write to a volume that only one of them may have.
package hosts
