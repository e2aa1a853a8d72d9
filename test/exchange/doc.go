// Package exchange has volplane in the place of the sidecars of Kubernetes: with their arguments, rights, leases,
// metrics and images, and back.
package exchange
