// Package standalonetest runs the real API server inside a test's process.
package standalonetest
