// Package kubetest is what the tests of controllers share that run over a client
// which keeps objects only.
package kubetest
