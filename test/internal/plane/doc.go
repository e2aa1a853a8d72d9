// Package plane runs a standalone control plane as users do, the built
// programs as processes over a temporary data directory, for tests and
// benchmarks.
package plane
