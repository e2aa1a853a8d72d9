// Package image writes container images without a daemon, as an OCI layout in a tar and as archives that docker loads.
// The same input makes the same bytes.
package image
