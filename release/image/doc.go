// Package image writes container images without a daemon, as an OCI layout in a tar and as archives that docker loads.
// The same input gives the same bytes.
package image
